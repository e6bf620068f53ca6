//! What the settings ask of a join.

use overspill_join::hash_table::TableChoice;
use overspill_join::radix::region_of_this_machine;

use crate::config::{HashTable, Strategy};

/// The bytes of a hash table that probe rows are partitioned for, if the strategy asks for it.
pub(super) fn probe_region(strategy: Strategy) -> Option<usize> {
    (strategy == Strategy::Radix).then(region_of_this_machine)
}

/// The first table to try.
pub(super) fn table_choice(table: HashTable) -> TableChoice {
    match table {
        HashTable::Auto | HashTable::Perfect => TableChoice::Perfect,
        HashTable::LinearProbing => TableChoice::LinearProbing,
        HashTable::Unchained => TableChoice::Unchained,
    }
}
