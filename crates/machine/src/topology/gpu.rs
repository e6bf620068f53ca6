//! GPUs and their links to the CPU.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{text, value};
use crate::Result;
use crate::driver::{Driver, Properties};

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gpu {
    /// The GPU's number, from 0.
    pub ordinal: usize,
    /// Properties reported by the driver.
    #[serde(flatten)]
    pub properties: Properties,
    /// The GPU's link, if it is PCIe.
    pub link: Option<Link>,
    /// The nearest NUMA node, if the system reports it.
    pub node: Option<usize>,
}

/// A PCIe link at its maximum speed: idle GPUs reduce the speed of their link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Link {
    /// The PCIe generation, if the speed is that of a known generation.
    pub generation: Option<u32>,
    /// Billions of transfers per second and lane.
    pub gigatransfers: f64,
    /// Number of lanes in use.
    pub lanes: u32,
}

pub(super) fn read(root: &Path) -> Result<Vec<Gpu>> {
    let driver = Driver::nvidia()?;
    (0..driver.device_count())
        .map(|ordinal| {
            let device = driver.device(ordinal, 0)?;
            let properties = device.properties().clone();
            let link = read_link(root, &properties.pci_bus_id);
            let node = read_node(root, &properties.pci_bus_id);
            Ok(Gpu { ordinal, properties, link, node })
        })
        .collect()
}

/// Returns the sysfs folder of a PCI device.
fn folder_of(root: &Path, pci_bus_id: &str) -> Option<PathBuf> {
    // The driver writes the domain with eight or four uppercase digits, the system with four lowercase digits.
    let id = pci_bus_id.to_ascii_lowercase();
    let id = id.get(id.len().checked_sub("0000:00:00.0".len())?..)?;
    Some(root.join("sys/bus/pci/devices").join(id))
}

/// Reads the nearest NUMA node. The system reports -1 on machines with one node.
pub(super) fn read_node(root: &Path, pci_bus_id: &str) -> Option<usize> {
    value(&folder_of(root, pci_bus_id)?.join("numa_node"))
}

pub(super) fn read_link(root: &Path, pci_bus_id: &str) -> Option<Link> {
    let folder = folder_of(root, pci_bus_id)?;
    let gigatransfers: f64 = text(&folder.join("max_link_speed"))?.split_whitespace().next()?.parse().ok()?;
    let lanes = value(&folder.join("current_link_width"))?;
    let generations = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
    let generation =
        generations.iter().position(|speed| *speed == gigatransfers).and_then(|at| u32::try_from(at + 1).ok());
    Some(Link { generation, gigatransfers, lanes })
}
