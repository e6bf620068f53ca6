//! The components of the machine as reported by the system. Nothing here is measured.
//!
//! The system's files (`/proc`, `/sys`) are read below a root, so that tests can lay out their own machines. Values that the
//! files do not contain are omitted, never guessed.

mod cpu;
mod gpu;
mod memory;
mod translation;

use std::path::Path;
use std::str::FromStr;

use serde::Serialize;

pub use cpu::{Cache, CacheKind, Cpu};
pub use gpu::{Gpu, Link};
pub use memory::{HugePagePool, Memory, Node, TransparentHugePages};
pub use translation::TranslationCache;

/// The processors, memory and GPUs of the machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Topology {
    /// The processors.
    pub cpu: Cpu,
    /// Their memory.
    pub memory: Memory,
    /// Translation lookaside buffers of a core; empty if the processor does not report them.
    pub translation_caches: Vec<TranslationCache>,
    /// GPUs that the driver finds.
    pub gpus: Vec<Gpu>,
    /// The reason why there are no GPUs.
    pub no_gpu_because: Option<String>,
}

impl Topology {
    /// Reads this machine. Loads the driver of NVIDIA's GPUs and opens each GPU that it finds.
    pub fn of_this_machine() -> Self {
        let topology = Self::without_gpus();
        match gpu::read(Path::new("/")) {
            Ok(gpus) => Self { gpus, ..topology },
            Err(error) => Self { no_gpu_because: Some(error.to_string()), ..topology },
        }
    }

    /// Reads this machine without its GPUs. Does not load a driver.
    pub fn without_gpus() -> Self {
        Self { translation_caches: translation::read(), ..Self::below(Path::new("/")) }
    }

    /// Reads the machine whose `proc` and `sys` are below `root`.
    fn below(root: &Path) -> Self {
        Self {
            cpu: Cpu::read(root),
            memory: Memory::read(root),
            translation_caches: Vec::new(),
            gpus: Vec::new(),
            no_gpu_because: None,
        }
    }
}

/// Returns the trimmed text of a file, if the file exists.
fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn value<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// Parses a list of numbers such as `0-3,8,10-11`.
fn numbers(list: &str) -> Vec<usize> {
    list.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?)
        })
        .flatten()
        .collect()
}

/// Returns the entries of a folder whose names are `prefix` and a number, sorted by number.
fn numbered(folder: &Path, prefix: &str) -> Vec<(usize, std::path::PathBuf)> {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((number, entry.path()))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests;
