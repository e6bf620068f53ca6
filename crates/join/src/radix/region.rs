//! How much of a hash table is looked into at a time.

use std::sync::LazyLock;

use overspill_machine::topology::Cpu;

/// The part of a core's own cache that a region may take: the rest is for the rows that look into it.
const SHARE: u64 = 2;

/// A core's own cache where the system does not tell.
const USUAL_CACHE: u64 = 1 << 20;

/// How probe rows are partitioned by the part of the hash table that they look into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeRegions {
    /// The bytes of a part.
    pub region: usize,
    /// Only for tables of more bytes.
    pub beyond: usize,
}

impl ProbeRegions {
    /// Parts that fit the cache of a core of this machine, of tables of more than so many bytes.
    pub fn of_this_machine(beyond: usize) -> Self {
        Self { region: region_of_this_machine(), beyond }
    }
}

/// The bytes of a hash table that fit the cache of a core of this machine, with the rows that look into them.
pub fn region_of_this_machine() -> usize {
    static REGION: LazyLock<usize> = LazyLock::new(|| {
        let cache = Cpu::of_this_machine().private_cache().unwrap_or(USUAL_CACHE);
        usize::try_from(cache / SHARE).unwrap_or(usize::MAX)
    });
    *REGION
}
