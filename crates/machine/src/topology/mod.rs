//! What the machine is made of, as the system tells it: nothing here is measured.
//!
//! The system's files (`/proc`, `/sys`) are read below a root, so that tests can lay out machines of their own. What a file does
//! not tell is left out, never guessed.

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
pub use translation::{TranslationCache, TranslationKind};

/// Processors, caches and memory of the machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Topology {
    /// The processors.
    pub cpu: Cpu,
    /// Their memory.
    pub memory: Memory,
    /// Translation lookaside buffers of a core; empty where the processor does not tell.
    pub translation_caches: Vec<TranslationCache>,
    /// GPUs that the driver finds.
    pub gpus: Vec<Gpu>,
    /// Why there are none.
    pub no_gpu_because: Option<String>,
}

impl Topology {
    /// This machine. Looks for the driver of NVIDIA's GPUs, and opens each that it finds.
    pub fn of_this_machine() -> Self {
        let topology = Self::without_gpus();
        match gpu::read(Path::new("/")) {
            Ok(gpus) => Self { gpus, ..topology },
            Err(error) => Self { no_gpu_because: Some(error.to_string()), ..topology },
        }
    }

    /// The same without its GPUs, for which no driver is looked for.
    pub fn without_gpus() -> Self {
        Self { translation_caches: translation::read(), ..Self::below(Path::new("/")) }
    }

    /// The machine whose `proc` and `sys` lie below a root.
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

/// The trimmed text of a file, if it is there.
fn text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn value<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// The numbers of a list such as `0-3,8,10-11`.
fn numbers(list: &str) -> Vec<usize> {
    list.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?)
        })
        .flatten()
        .collect()
}

/// Folders of a folder that are named a prefix and a number, by number.
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
