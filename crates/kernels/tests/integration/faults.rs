//! Whatever the driver refuses ends in an error, with all memory given back.

use overspill_kernels::{
    Algorithm, CountedKeys, HashFunction, Input, Kernels, KeyWidth, Output, PartitionPlan, Partitioner, PayloadInput,
    Radix,
};
use overspill_machine::driver::Stream;
use overspill_machine::memory::{DeviceBuffer, HostBuffer, PageSize};
use overspill_machine::{Error, Result};

use crate::test_gpu::TestGpu;

/// Loads the kernels, partitions pinned memory into pinned memory, and checks the answer.
fn work(gpu: &TestGpu) -> Result<()> {
    let device = gpu.driver.device(0, 64 << 20)?;
    let kernels = Kernels::load(&device)?;
    let stream = Stream::new(&device)?;
    let tuples = 3000u64;
    let radix = Radix::new(4, 0, HashFunction::Murmur3)?;
    let plan = PartitionPlan::new(&kernels, Algorithm::Hierarchical, KeyWidth::Eight, &[8], radix, tuples, 8 << 20)?;
    let mut keys = HostBuffer::pinned(&device, (tuples * 8) as usize, PageSize::Small)?;
    for (key, place) in (0..).zip(keys.as_mut_slice::<u64>()) {
        *place = key;
    }
    let counted = CountedKeys::new(&device, &plan, &keys, 2)?;
    let mut partitioner = Partitioner::new(&kernels, plan.clone())?;
    for by_cpu in [false, true] {
        let mut out_keys = HostBuffer::pinned(&device, (plan.output_tuples() * 8) as usize, PageSize::Small)?;
        let mut out_rows = DeviceBuffer::new(&device, plan.output_tuples() * 8)?;
        out_rows.fill(&stream, 0)?;
        let mut output = Output { keys: out_keys.view_mut(&device)?, payloads: vec![out_rows.view_mut()] };
        let payloads = vec![PayloadInput::RowIds(0)];
        let partitions = if by_cpu {
            partitioner.run_counted(&stream, &counted, payloads, &mut output)?
        } else {
            partitioner.run(&stream, &Input { keys: keys.view(&device)?, payloads }, &mut output)?
        };
        let rows: Vec<u64> = out_rows.read(&stream, plan.output_tuples() as usize)?;
        let mut sum = 0;
        for (start, count) in partitions {
            let range = start as usize..(start + count) as usize;
            assert_eq!(
                out_keys.as_slice::<u64>()[range.clone()],
                rows[range.clone()],
                "a wrong answer instead of an error"
            );
            sum += rows[range].iter().sum::<u64>();
        }
        assert_eq!(sum, tuples * (tuples - 1) / 2, "a wrong answer instead of an error");
    }
    Ok(())
}

/// Makes the n-th call of a kind fail, for every n until none is left to fail. `work` checks its own answers.
pub fn each_fails_once(kind: &str, at_least: u64, work: impl Fn(&TestGpu) -> Result<()>) {
    let Some(gpu) = TestGpu::stand_in() else { return };
    let before = gpu.held();
    work(&gpu).unwrap_or_else(|error| panic!("{kind}: {error}"));
    assert_eq!(gpu.held(), before, "held after success");
    let mut failures = 0;
    for nth in 1.. {
        gpu.configure(&format!("fail={kind}:{nth}"));
        let outcome = work(&gpu);
        // What was not reached does not strike later.
        gpu.configure(&format!("fail={kind}:0"));
        assert_eq!(gpu.held(), before, "held after {kind} {nth} ended in {outcome:?}");
        // A context that is lost while cudarc opens it is not released.
        gpu.configure("reset=1");
        match outcome {
            Ok(()) => break,
            Err(error) => {
                failures += 1;
                assert!(!error.to_string().is_empty());
                if kind == "device_lost" || kind == "synchronisation" {
                    assert!(matches!(error, Error::DeviceLost { .. }), "{kind} {nth}: {error}");
                } else {
                    assert!(
                        matches!(
                            error,
                            Error::OutOfDeviceMemory { .. } | Error::OutOfHostMemory { .. } | Error::Driver { .. }
                        ),
                        "{kind} {nth}: {error:?}"
                    );
                }
            }
        }
        assert!(nth < 1000, "{kind} fails for ever");
    }
    assert!(failures >= at_least, "only {failures} of {kind} failed");
    work(&gpu).unwrap();
}

#[test]
fn each_allocation_fails_once() {
    each_fails_once("allocation", 5, work);
}

#[test]
fn each_registration_fails_once() {
    each_fails_once("registration", 2, work);
}

#[test]
fn each_copy_fails_once() {
    each_fails_once("copy", 3, work);
}

#[test]
fn each_launch_fails_once() {
    each_fails_once("launch", 6, work);
}

#[test]
fn each_synchronisation_fails_once() {
    each_fails_once("synchronisation", 3, work);
}

/// Whatever the driver calls the error: a device that fails twice is lost.
#[test]
fn a_failed_kernel_loses_the_device() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    for failure in [700, 717, 718, 719, 800, 999] {
        gpu.configure(&format!("failure={failure};fail=synchronisation:2"));
        let error = work(&gpu).unwrap_err();
        assert!(matches!(error, Error::DeviceLost { .. }), "{failure}: {error}");
        gpu.configure("reset=1;failure=719");
        work(&gpu).unwrap();
    }
}

#[test]
fn the_device_is_lost_at_each_call() {
    each_fails_once("device_lost", 30, work);
}

#[test]
fn the_budget_is_kept() {
    let gpu = TestGpu::start();
    let device = gpu.driver.device(0, 1 << 20).unwrap();
    let half = DeviceBuffer::new(&device, 512 << 10).unwrap();
    let error = DeviceBuffer::new(&device, (512 << 10) + 1).unwrap_err();
    assert!(matches!(error, Error::OverBudget { .. }), "{error}");
    assert_eq!(device.memory_held(), 512 << 10);
    drop(half);
    assert_eq!(device.memory_held(), 0);
    DeviceBuffer::new(&device, 1 << 20).unwrap();
}

#[test]
fn less_memory_than_the_budget_says_is_told() {
    let Some(gpu) = TestGpu::stand_in() else { return };
    gpu.configure("memory=1048576");
    let device = gpu.driver.device(0, 8 << 20).unwrap();
    let error = DeviceBuffer::new(&device, 2 << 20).unwrap_err();
    assert!(matches!(error, Error::OutOfDeviceMemory { .. }), "{error}");
    assert_eq!(device.memory_held(), 0);
}
