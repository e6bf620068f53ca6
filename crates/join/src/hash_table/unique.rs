//! Tables whose keys have one row each.

use std::ops::Range;

use super::bloom_filter::BloomFilter;
use super::linear_probing::LinearProbingTable;
use super::matches::Lookups;
use super::perfect::PerfectRows;
use super::perfect_payloads::PerfectPayloads;
use super::regions::TableOrder;
use super::unchained::UnchainedTable;
use crate::keys::Keys;

/// A table of row numbers.
#[derive(Debug)]
pub(super) enum UniqueTable {
    /// Keys of at most 64 bits.
    Word64(WordTable),
    /// Keys of at most 128 bits.
    Word128(UnchainedTable<[u64; 2]>),
}

/// A table of the row numbers of keys of at most 64 bits.
#[derive(Debug)]
pub(super) enum WordTable {
    /// Keys in a dense range.
    Perfect(PerfectRows),
    /// Other keys.
    LinearProbing(LinearProbingTable),
    /// Other keys, if this table was chosen.
    Unchained(UnchainedTable<u64>),
}

/// A table of payloads of keys of at most 64 bits.
#[derive(Debug)]
pub(super) enum PayloadTable {
    /// Keys in a dense range.
    Perfect(PerfectPayloads),
    /// Other keys.
    LinearProbing(LinearProbingTable),
}

/// How keys are looked up: whether few of them are expected in the table, and a filter to ask first.
pub(super) type Asked<'a> = (bool, Option<&'a BloomFilter>);

impl UniqueTable {
    /// Finds the row of the key of each of these probe rows. The vectors are overwritten.
    pub fn find(&self, keys: &Keys, rows: Range<usize>, asked: Asked<'_>, build: &mut Vec<u32>, probe: &mut Vec<u32>) {
        match self {
            Self::Word64(table) => table.find(lookups(keys, keys.words(), rows, asked), build, probe),
            Self::Word128(table) => table.find_one(lookups(keys, keys.wide_words(), rows, asked), build, probe),
        }
    }
}

impl WordTable {
    /// Finds the row of each key, and the number of the key.
    pub fn find(&self, lookups: Lookups<'_, u64>, build: &mut Vec<u32>, probe: &mut Vec<u32>) {
        match self {
            Self::Perfect(table) => table.find_one(lookups, build, probe),
            Self::LinearProbing(table) => table.find_one(lookups, |row| row as u32, build, probe),
            Self::Unchained(table) => table.find_one(lookups, build, probe),
        }
    }

    /// How keys are ordered in the memory of the table; `None` if entries and the directory are two arrays.
    pub fn order(&self) -> Option<TableOrder> {
        match self {
            Self::Perfect(table) => Some(table.range()),
            Self::LinearProbing(_) => Some(TableOrder::Hash),
            Self::Unchained(_) => None,
        }
    }
}

impl PayloadTable {
    /// Finds the payload of each key, and the number of the key.
    pub fn find(&self, lookups: Lookups<'_, u64>, payloads: &mut Vec<u64>, probe: &mut Vec<u32>) {
        match self {
            Self::Perfect(table) => table.find_one(lookups, payloads, probe),
            Self::LinearProbing(table) => table.find_one(lookups, |payload| payload, payloads, probe),
        }
    }

    /// How keys are ordered in the memory of the table.
    pub fn order(&self) -> TableOrder {
        match self {
            Self::Perfect(table) => table.range(),
            Self::LinearProbing(_) => TableOrder::Hash,
        }
    }
}

/// The lookups for these rows of a batch.
pub(super) fn lookups<'a, K>(
    keys: &'a Keys,
    words: &'a [K],
    rows: Range<usize>,
    (are_few, filter): Asked<'a>,
) -> Lookups<'a, K> {
    Lookups { first: rows.start, keys: &words[rows], matchable: keys.matchable.as_ref(), are_few, filter }
}
