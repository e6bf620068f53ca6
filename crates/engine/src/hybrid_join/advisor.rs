//! Chooses how a join runs by what the machine has.

use std::sync::LazyLock;

use overspill_join::hash_table::TableChoice;
use overspill_machine::topology::Cpu;

use crate::config::{HashTable, Strategy};

/// The part of a core's own cache that a region of a hash table may take: the rest is for the rows that look into it.
const REGION_SHARE: u64 = 2;

/// A core's own cache where the system does not tell.
const USUAL_CACHE: u64 = 1 << 20;

/// The bytes of a hash table that probe rows are partitioned for, if the strategy asks for it.
pub(super) fn probe_region(strategy: Strategy) -> Option<usize> {
    static REGION: LazyLock<usize> = LazyLock::new(|| {
        let cache = Cpu::of_this_machine().private_cache().unwrap_or(USUAL_CACHE);
        usize::try_from(cache / REGION_SHARE).unwrap_or(usize::MAX)
    });
    (strategy == Strategy::Radix).then(|| *REGION)
}

/// The first table to try.
pub(super) fn table_choice(table: HashTable) -> TableChoice {
    match table {
        HashTable::Auto | HashTable::Perfect => TableChoice::Perfect,
        HashTable::LinearProbing => TableChoice::LinearProbing,
        HashTable::Unchained => TableChoice::Unchained,
    }
}
