//! Drivers that cannot be used are told apart, by name. A process loads one driver in its life, so each has its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use overspill_machine::Error;
use overspill_machine::driver::Driver;

use crate::test_gpu::{TestGpu, library};

/// Which library the other process is to load.
const LIBRARY: &str = "OVERSPILL_TEST_DRIVER";

/// Not a test of its own: what the other process does.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn loads_a_driver() {
    let path = PathBuf::from(std::env::var_os(LIBRARY).expect("run by the other tests"));
    match Driver::emulated(&path).and_then(|driver| driver.device(0, 1 << 20).map(|_| driver.device_count())) {
        Ok(devices) => println!("outcome: {devices} devices"),
        Err(error) => println!("outcome: {error}"),
    }
}

/// What another process says of a driver.
fn outcome(library: &Path, settings: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "bad_driver::loads_a_driver", "--ignored", "--nocapture"])
        .env(LIBRARY, library)
        .env("OVERSPILL_EMULATED", settings)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    // The harness begins the line with the name of the test.
    let told = text.lines().find_map(|line| line.split_once("outcome: ")).map(|(_, told)| told.to_owned());
    told.unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn a_good_driver_is_good() {
    let Some(_gpu) = TestGpu::stand_in() else { return };
    assert_eq!(outcome(&library(), "devices=3"), "3 devices");
}

#[test]
fn an_old_driver_is_told_its_version() {
    let Some(_gpu) = TestGpu::stand_in() else { return };
    for (version, name) in [("11080", "CUDA 11.8"), ("12090", "CUDA 12.9")] {
        let told = outcome(&library(), &format!("driver={version}"));
        assert!(
            told.contains(name) && told.contains("13.0 (driver 580)") && told.contains("update the driver"),
            "{told}"
        );
    }
}

#[test]
fn a_driver_without_devices() {
    let Some(_gpu) = TestGpu::stand_in() else { return };
    assert_eq!(outcome(&library(), "devices=0"), Error::NoDevice.to_string());
}

#[test]
fn a_library_that_is_not_there() {
    let Some(_gpu) = TestGpu::stand_in() else { return };
    let told = outcome(Path::new("/no/such/library.so"), "");
    assert!(told.contains("/no/such/library.so"), "{told}");
}

#[test]
fn a_driver_that_lacks_a_function() {
    let Some(_gpu) = TestGpu::stand_in() else { return };
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcuda.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut compile = Command::new(compiler);
    compile
        .args(["-shared", "-Wl,-soname,libcuda.so", "-x", "c", "/dev/null", "-o"])
        .arg(&library)
        .env_remove("LD_PRELOAD");
    assert!(compile.status().unwrap().success());
    let told = outcome(&library, "");
    assert!(told.contains("lacks the function cu") && told.contains("update the driver"), "{told}");
}

#[test]
fn a_process_keeps_its_driver() {
    let Some(_gpu) = TestGpu::stand_in() else { return };
    let error = Driver::nvidia().unwrap_err();
    assert!(matches!(error, Error::DriverChosenBefore { .. }), "{error}");
    assert!(error.to_string().contains("emulated device"), "{error}");
}

#[test]
fn a_device_that_is_not_there() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let error = gpu.driver.device(3, 1 << 20).unwrap_err();
    assert!(error.to_string().contains("no GPU 3") && error.to_string().contains("has 3"), "{error}");
}
