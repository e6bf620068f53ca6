//! Energy counters of processors and a GPU.

use std::ffi::OsStr;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// The directory of Linux's processor energy counters (RAPL), for both Intel and AMD.
pub(super) const POWERCAP: &str = "/sys/class/powercap";

/// NVIDIA's management library, which comes with the driver.
pub(super) const NVML: &str = "libnvidia-ml.so.1";

/// The energy counters of the processors, one per package.
#[derive(Debug)]
pub(super) struct ProcessorEnergy {
    packages: Vec<PathBuf>,
}

impl ProcessorEnergy {
    /// The counters in a folder, or a sentence why there are none.
    pub(super) fn find(folder: &Path) -> Result<Self, String> {
        let zones = read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        // Some machines expose the same counter a second time (intel-rapl-mmio).
        let is_rapl = |zone: &PathBuf| {
            let name = zone.file_name().map(|name| name.to_string_lossy());
            name.is_some_and(|name| name.starts_with("intel-rapl:"))
        };
        let is_package = |zone: &PathBuf| {
            is_rapl(zone) && read_to_string(zone.join("name")).is_ok_and(|name| name.starts_with("package-"))
        };
        let packages: Vec<_> = zones.filter(is_package).collect();
        if packages.is_empty() {
            return Err(format!("this machine has no counters of its processors' energy in {}", folder.display()));
        }
        let counters = Self { packages };
        counters.read().map(|_| counters)
    }

    /// Microjoules of each package since an arbitrary time.
    pub(super) fn read(&self) -> Result<Vec<u64>, String> {
        self.packages.iter().map(|package| number(&package.join("energy_uj"))).collect()
    }

    /// Joules of all packages since `before` was read. Assumes that a counter wrapped at most once.
    pub(super) fn joules_since(&self, before: &[u64]) -> Result<f64, String> {
        let mut microjoules = 0;
        for ((package, before), now) in self.packages.iter().zip(before).zip(self.read()?) {
            microjoules += match now.checked_sub(*before) {
                Some(more) => more,
                None => number(&package.join("max_energy_range_uj"))?.saturating_sub(*before) + now,
            };
        }
        Ok(microjoules as f64 / 1e6)
    }
}

#[derive(Debug)]
pub(super) struct GpuEnergy {
    nvml: Nvml,
    pci_bus_id: String,
}

impl GpuEnergy {
    /// The counter of the GPU with this PCI bus id, through the management library `library`, or a sentence why there is
    /// none.
    pub(super) fn find(library: &OsStr, pci_bus_id: &str) -> Result<Self, String> {
        let failed = |error: NvmlError| {
            format!("the GPU's energy cannot be asked for, which takes {}: {error}", library.to_string_lossy())
        };
        let nvml = Nvml::builder().lib_path(library).init().map_err(failed)?;
        let energy = Self { nvml, pci_bus_id: pci_bus_id.to_owned() };
        energy.joules().map(|_| energy)
    }

    /// Joules since an arbitrary time.
    pub(super) fn joules(&self) -> Result<f64, String> {
        // Power could be sampled if energy is not counted, but the energy between samples would be a guess.
        let millijoules =
            self.nvml.device_by_pci_bus_id(self.pci_bus_id.as_str()).and_then(|gpu| gpu.total_energy_consumption());
        millijoules.map(|millijoules| millijoules as f64 / 1e3).map_err(|error| {
            format!("the GPU at {} does not count its energy, as those from Volta on do: {error}", self.pci_bus_id)
        })
    }
}

fn number(path: &Path) -> Result<u64, String> {
    let text = read_to_string(path).map_err(|error| {
        format!("the energy counter {} cannot be read ({error}), which takes the rights of root", path.display())
    })?;
    text.trim().parse().map_err(|_| format!("the energy counter {} is not a number: {:?}", path.display(), text.trim()))
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir, write};

    use super::*;

    fn zone(folder: &Path, zone: &str, name: &str, energy: &str) {
        let zone = folder.join(zone);
        create_dir(&zone).unwrap();
        write(zone.join("name"), format!("{name}\n")).unwrap();
        write(zone.join("energy_uj"), energy).unwrap();
        write(zone.join("max_energy_range_uj"), "1000000000\n").unwrap();
    }

    #[test]
    fn joules_of_packages_are_added() {
        let folder = tempfile::tempdir().unwrap();
        zone(folder.path(), "intel-rapl:0", "package-0", "1000000\n");
        zone(folder.path(), "intel-rapl:1", "package-1", "999000000\n");
        zone(folder.path(), "intel-rapl:0:0", "core", "5\n");
        zone(folder.path(), "intel-rapl-mmio:0", "package-0", "5\n");
        let counters = ProcessorEnergy::find(folder.path()).unwrap();
        let before = counters.read().unwrap();
        write(folder.path().join("intel-rapl:0/energy_uj"), "3500000\n").unwrap();
        // The counter has wrapped.
        write(folder.path().join("intel-rapl:1/energy_uj"), "500000\n").unwrap();
        write(folder.path().join("intel-rapl:0:0/energy_uj"), "900000\n").unwrap();
        write(folder.path().join("intel-rapl-mmio:0/energy_uj"), "900000\n").unwrap();
        assert_eq!(counters.joules_since(&before).unwrap(), 2.5 + 1.5);
    }

    #[test]
    fn machines_without_counters_are_told() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), &folder.path().join("nowhere")] {
            let reason = ProcessorEnergy::find(path).unwrap_err();
            assert!(reason.contains("has no counters of its processors' energy"), "{reason}");
        }
        zone(folder.path(), "intel-rapl:0", "package-0", "many");
        let reason = ProcessorEnergy::find(folder.path()).unwrap_err();
        assert!(reason.contains("is not a number: \"many\""), "{reason}");
        std::fs::remove_file(folder.path().join("intel-rapl:0/energy_uj")).unwrap();
        let reason = ProcessorEnergy::find(folder.path()).unwrap_err();
        assert!(reason.contains("cannot be read") && reason.contains("root"), "{reason}");
    }

    #[test]
    fn without_a_management_library_the_reason_is_told() {
        let reason = GpuEnergy::find(OsStr::new("libno-such-library.so.1"), "0000:01:00.0").unwrap_err();
        assert!(reason.contains("energy cannot be asked for, which takes libno-such-library.so.1: "), "{reason}");
    }
}
