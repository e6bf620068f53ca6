//! The size of the hash table regions that are probed one at a time.

use std::sync::LazyLock;

use overspill_machine::topology::Cpu;

/// A region takes one in this many parts of a core's own cache: the rest is for the rows that probe it.
const SHARE: u64 = 2;

/// Bytes assumed for a core's own cache if the system does not report it.
const USUAL_CACHE: u64 = 1 << 20;

/// How probe rows are partitioned by the region of the hash table that they probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeRegions {
    /// Bytes of a region.
    pub region: usize,
    /// Only tables with more bytes than this are divided.
    pub beyond: usize,
}

impl ProbeRegions {
    /// Regions that fit a core's cache on this machine, for tables of more than `beyond` bytes.
    pub fn of_this_machine(beyond: usize) -> Self {
        Self { region: region_of_this_machine(), beyond }
    }
}

/// Bytes of a hash table that fit a core's cache on this machine, together with the rows that probe them.
pub(crate) fn region_of_this_machine() -> usize {
    static REGION: LazyLock<usize> = LazyLock::new(|| {
        let cache = Cpu::of_this_machine().private_cache().unwrap_or(USUAL_CACHE);
        usize::try_from(cache / SHARE).unwrap_or(usize::MAX)
    });
    *REGION
}
