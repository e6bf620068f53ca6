//! CPU memory: its nodes and its pages.

use std::path::Path;

use serde::Serialize;

use super::{numbered, numbers, text, value};

/// The memory of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Bytes of all nodes.
    pub bytes: Option<u64>,
    /// NUMA nodes; empty if the system reports none, which means one node.
    pub nodes: Vec<Node>,
    /// Bytes of a small page.
    pub page: u64,
    /// Whether large allocations get huge pages always, on request, or never.
    pub transparent_huge_pages: Option<TransparentHugePages>,
    /// Huge pages reserved by the system.
    pub huge_page_pools: Vec<HugePagePool>,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The node's number.
    pub number: usize,
    /// Bytes of its memory; `None` for a node with processors only.
    pub bytes: Option<u64>,
    /// Its processors; empty for a node with memory only, such as that of a GPU on a coherent link.
    pub processors: Vec<usize>,
    /// Distance of each node from this one, in the order of the nodes; 10 is the node itself.
    pub distances: Vec<u32>,
}

/// The system's policy for transparent huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransparentHugePages {
    /// Wherever huge pages fit.
    Always,
    /// Where a program requests them, as Overspill does.
    Madvise,
    /// Never.
    Never,
}

/// Huge pages of one size, reserved by the system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HugePagePool {
    /// Bytes of a page.
    pub page: u64,
    /// Number of reserved pages.
    pub pages: u64,
    /// Number of reserved pages that are unused.
    pub free: u64,
}

impl Memory {
    pub(super) fn read(root: &Path) -> Self {
        let nodes = numbered(&root.join("sys/devices/system/node"), "node")
            .into_iter()
            .map(|(number, path)| Node {
                number,
                bytes: text(&path.join("meminfo"))
                    .and_then(|text| kilobytes(&text, "MemTotal:"))
                    .filter(|bytes| *bytes > 0),
                processors: text(&path.join("cpulist")).map(|list| numbers(&list)).unwrap_or_default(),
                distances: text(&path.join("distance"))
                    .map(|text| text.split_whitespace().filter_map(|distance| distance.parse().ok()).collect())
                    .unwrap_or_default(),
            })
            .collect();
        let mut pools: Vec<HugePagePool> = std::fs::read_dir(root.join("sys/kernel/mm/hugepages"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let page: u64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
                let count = |file: &str| value(&entry.path().join(file));
                Some(HugePagePool { page: page << 10, pages: count("nr_hugepages")?, free: count("free_hugepages")? })
            })
            .filter(|pool| pool.pages > 0)
            .collect();
        pools.sort_by_key(|pool| pool.page);
        Self {
            bytes: text(&root.join("proc/meminfo")).and_then(|text| kilobytes(&text, "MemTotal:")),
            nodes,
            page: page_size(),
            transparent_huge_pages: text(&root.join("sys/kernel/mm/transparent_hugepage/enabled"))
                .and_then(|text| rule(&text)),
            huge_page_pools: pools,
        }
    }
}

/// Returns the value of a line such as `MemTotal:  123 kB` in bytes. Text before the name is ignored.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once(name))?.1;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses the policy in brackets: `always [madvise] never`.
fn rule(text: &str) -> Option<TransparentHugePages> {
    match text.split_once('[')?.1.split_once(']')?.0 {
        "always" => Some(TransparentHugePages::Always),
        "madvise" => Some(TransparentHugePages::Madvise),
        "never" => Some(TransparentHugePages::Never),
        _ => None,
    }
}

fn page_size() -> u64 {
    // SAFETY: only reads a constant of the system.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
