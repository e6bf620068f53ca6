//! Stores measurements from one run to the next, for the machine that they were made on.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Measurements;
use crate::topology::Topology;

/// The contents of the file. A file of another version is ignored.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    machine: String,
    measurements: Measurements,
}

const VERSION: u32 = 2;

impl Measurements {
    /// The path of the file: `overspill/machine.json` in `XDG_CACHE_HOME`, or else in `~/.cache`.
    pub fn path() -> Option<PathBuf> {
        let folder =
            |name: &str| std::env::var_os(name).filter(|path| Path::new(path).is_absolute()).map(PathBuf::from);
        let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
        Some(cache.join("overspill").join("machine.json"))
    }

    /// Loads the measurements of this machine, if there are any. An unreadable file counts as missing.
    pub fn load(path: &Path, topology: &Topology) -> Option<Self> {
        Self::load_if(path, |machine| machine == identity(topology))
    }

    /// Like `load`, but for any GPUs: `topology` need not list them.
    pub fn load_for_processors(path: &Path, topology: &Topology) -> Option<Self> {
        let processors = |machine: &str| -> Option<Vec<serde_json::Value>> {
            let mut parts: Vec<_> = serde_json::from_str(machine).ok()?;
            parts.pop().map(|_gpus| parts)
        };
        let own = processors(&identity(topology))?;
        Self::load_if(path, |machine| processors(machine).as_ref() == Some(&own))
    }

    fn load_if(path: &Path, is_machine: impl FnOnce(&str) -> bool) -> Option<Self> {
        let stored: Stored = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        (stored.version == VERSION && is_machine(&stored.machine)).then_some(stored.measurements)
    }

    /// Saves the measurements. The file is replaced atomically.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path, topology: &Topology) -> io::Result<()> {
        let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        std::fs::create_dir_all(folder)?;
        let stored = Stored { version: VERSION, machine: identity(topology), measurements: self.clone() };
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&serde_json::to_vec_pretty(&stored)?)?;
        file.persist(path)?;
        Ok(())
    }
}

/// Returns the identity of a machine: its processors, nodes, page sizes and, last, GPUs, but not the number of free huge pages.
fn identity(topology: &Topology) -> String {
    let nodes: Vec<_> = topology.memory.nodes.iter().map(|node| (node.number, &node.processors)).collect();
    let gpus: Vec<_> = topology.gpus.iter().map(|gpu| (&gpu.properties.name, &gpu.properties.pci_bus_id)).collect();
    let memory = &topology.memory;
    let parts = (&topology.cpu, nodes, memory.page, memory.transparent_huge_pages, gpus);
    serde_json::to_string(&parts).unwrap_or_default()
}
