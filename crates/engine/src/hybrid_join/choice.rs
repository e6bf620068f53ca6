//! The join choices that the settings make.

use overspill_join::hash_table::TableChoice;

use crate::config::HashTable;

/// The first table to try.
pub(super) fn table_choice(table: HashTable) -> TableChoice {
    match table {
        HashTable::Auto | HashTable::Perfect => TableChoice::Perfect,
        HashTable::LinearProbing => TableChoice::LinearProbing,
        HashTable::Unchained => TableChoice::Unchained,
    }
}
