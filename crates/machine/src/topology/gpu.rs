//! GPUs and their links to the CPU.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{text, value};
use crate::Result;
use crate::driver::{Driver, Properties};

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gpu {
    /// Its number, from 0.
    pub ordinal: usize,
    /// What its driver tells.
    #[serde(flatten)]
    pub properties: Properties,
    /// Its link, if that is PCIe.
    pub link: Option<Link>,
    /// The NUMA node that it is nearest to, where the system tells.
    pub node: Option<usize>,
}

/// A PCIe link, as it is at its fastest: idle GPUs let it sleep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Link {
    /// Of PCIe, where the speed is one of those it has had.
    pub generation: Option<u32>,
    /// Billions of transfers a second and lane.
    pub gigatransfers: f64,
    /// Lanes in use.
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

/// The folder of a PCI device.
fn folder_of(root: &Path, pci_bus_id: &str) -> Option<PathBuf> {
    // The driver gives a domain of eight or four digits in capitals, the system one of four in small letters.
    let id = pci_bus_id.to_ascii_lowercase();
    let id = id.get(id.len().checked_sub("0000:00:00.0".len())?..)?;
    Some(root.join("sys/bus/pci/devices").join(id))
}

/// The system writes -1 where a machine has one node.
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
