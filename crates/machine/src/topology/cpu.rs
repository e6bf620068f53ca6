//! Processors and their caches.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use super::{numbered, numbers, text, value};

/// All processors of the machine, which are assumed to be identical.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// The model name reported by the system.
    pub model: Option<String>,
    /// Number of processor packages.
    pub sockets: usize,
    /// Number of cores of all sockets.
    pub cores: usize,
    /// Number of hardware threads of all cores that are online.
    pub threads: usize,
    /// Each kind of cache once, from the lowest level up.
    pub caches: Vec<Cache>,
}

/// The contents of a cache, or what a translation lookaside buffer translates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// A kind of cache. The machine may have several caches of one kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Cache {
    /// Cache level; 1 is nearest to the core.
    pub level: u32,
    /// The contents of the cache.
    pub kind: CacheKind,
    /// Size in bytes.
    pub bytes: u64,
    /// Bytes per cache line.
    pub line: u64,
    /// Number of hardware threads that share one such cache.
    pub shared_by: usize,
    /// Number of such caches.
    pub instances: usize,
}

impl Cpu {
    /// Reads the processors of this machine.
    pub fn of_this_machine() -> Self {
        Self::read(Path::new("/"))
    }

    /// Bytes of the largest private cache of a core: the second level, or the first.
    pub fn private_cache(&self) -> Option<u64> {
        let is_own = |cache: &&Cache| cache.kind != CacheKind::Instruction && cache.level <= 2;
        self.caches.iter().filter(is_own).map(|cache| cache.bytes).max()
    }

    /// Bytes of a cache that cores share: the largest of the third level or above.
    pub fn shared_cache(&self) -> Option<u64> {
        let is_shared = |cache: &&Cache| cache.kind != CacheKind::Instruction && cache.level > 2;
        self.caches.iter().filter(is_shared).map(|cache| cache.bytes).max()
    }

    pub(super) fn read(root: &Path) -> Self {
        let folder = root.join("sys/devices/system/cpu");
        let online = text(&folder.join("online")).map(|list| numbers(&list));
        let processors: Vec<_> = numbered(&folder, "cpu")
            .into_iter()
            .filter(|(number, _)| online.as_ref().is_none_or(|online| online.contains(number)))
            .collect();
        let mut sockets = BTreeSet::new();
        let mut cores = BTreeSet::new();
        // A cache is identified by its properties and the processors that share it.
        let mut caches = BTreeSet::new();
        for (number, path) in &processors {
            let socket: usize = value(&path.join("topology/physical_package_id")).unwrap_or(0);
            sockets.insert(socket);
            cores.insert((socket, value(&path.join("topology/core_id")).unwrap_or(*number)));
            for (_, cache) in numbered(&path.join("cache"), "index") {
                if let Some((shared, cache)) = read_cache(&cache) {
                    caches.insert((cache, shared));
                }
            }
        }
        let mut kinds: Vec<Cache> = Vec::new();
        for (cache, _) in caches {
            match kinds.iter_mut().find(|kind| Cache { instances: 1, ..(*kind).clone() } == cache) {
                Some(kind) => kind.instances += 1,
                None => kinds.push(cache),
            }
        }
        Self {
            model: model(root),
            sockets: sockets.len().max(1),
            cores: cores.len().max(1),
            threads: processors.len().max(1),
            caches: kinds,
        }
    }
}

fn model(root: &Path) -> Option<String> {
    let text = text(&root.join("proc/cpuinfo"))?;
    // The first prefix is for x86 and ARM, the second for POWER.
    let line = text.lines().find(|line| line.starts_with("model name") || line.starts_with("cpu\t"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Reads a cache and the processors that share it.
fn read_cache(folder: &Path) -> Option<(Vec<usize>, Cache)> {
    let kind = match text(&folder.join("type"))?.as_str() {
        "Data" => CacheKind::Data,
        "Instruction" => CacheKind::Instruction,
        _ => CacheKind::Unified,
    };
    let shared = numbers(&text(&folder.join("shared_cpu_list"))?);
    let cache = Cache {
        level: value(&folder.join("level"))?,
        kind,
        bytes: size(&text(&folder.join("size"))?)?,
        line: value(&folder.join("coherency_line_size")).unwrap_or(64),
        shared_by: shared.len(),
        instances: 1,
    };
    Some((shared, cache))
}

/// Parses a size such as `48K` into bytes.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
