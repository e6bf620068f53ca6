//! Tables in which a key may have several rows.

use super::bloom_filter::BloomFilter;
use super::perfect::GroupedRows;
use super::unchained::UnchainedTable;
use super::visited::VisitedRows;
use crate::keys::{KeyBytes, Keys};

/// A table of row numbers. The rows of a key are adjacent.
#[derive(Debug)]
pub(super) enum MultiTable {
    /// Keys of at most 64 bits in a dense range.
    Perfect(GroupedRows),
    /// Keys of at most 64 bits.
    Word64(UnchainedTable<u64>),
    /// Keys of at most 128 bits.
    Word128(UnchainedTable<[u64; 2]>),
    /// Other keys. The table stores their hashes, and rows with equal hashes are compared by their bytes.
    Bytes(UnchainedTable<u64>, KeyBytes),
}

/// For each probe row, the range of its matches in a table; matches before the range have been found.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    pub begins: Vec<u32>,
    pub ends: Vec<u32>,
}

impl MultiTable {
    /// Finds the range of matches of each key. Returns the number of keys that have matches, if the table may be filtered.
    pub fn find(&self, keys: &Keys, filter: Option<&BloomFilter>, ranges: &mut Ranges) -> usize {
        let Ranges { begins, ends } = ranges;
        begins.clear();
        ends.clear();
        let found = match self {
            Self::Perfect(table) => {
                table.find(keys.words(), begins, ends);
                keys.len()
            }
            Self::Word64(table) => table.find(keys.words(), filter, begins, ends),
            Self::Word128(table) => table.find(keys.wide_words(), filter, begins, ends),
            Self::Bytes(table, _) => table.find(&keys.bytes_of_rows().hashes(), filter, begins, ends),
        };
        if let Some(matchable) = &keys.matchable {
            for (row, (begin, end)) in begins.iter().zip(ends).enumerate() {
                if matchable.is_null(row) {
                    *end = *begin;
                }
            }
        }
        found
    }

    /// Finds the next pairs of the keys from `row` on, at most `limit`. Returns false once all have been found.
    pub fn next_pairs(
        &self,
        keys: &Keys,
        (ranges, row): (&mut Ranges, &mut usize),
        (limit, first_only): (usize, bool),
        build: &mut Vec<u32>,
        probe: &mut Vec<u32>,
    ) -> bool {
        build.clear();
        probe.clear();
        let wanted = (limit, first_only);
        match self {
            Self::Perfect(table) => pairs(|place| table.row(place), (ranges, row), wanted, |_, _| true, build, probe),
            Self::Word64(table) => pairs(|place| table.row(place), (ranges, row), wanted, |_, _| true, build, probe),
            Self::Word128(table) => pairs(|place| table.row(place), (ranges, row), wanted, |_, _| true, build, probe),
            Self::Bytes(table, build_keys) => {
                let same = same_bytes(build_keys, keys);
                pairs(|place| table.row(place), (ranges, row), wanted, same, build, probe)
            }
        }
    }

    /// Marks the build rows in the ranges.
    pub fn mark(&self, keys: &Keys, ranges: &Ranges, visited: &VisitedRows) {
        match self {
            Self::Perfect(table) => mark(|place| table.row(place), ranges, |_, _| true, visited),
            Self::Word64(table) => mark(|place| table.row(place), ranges, |_, _| true, visited),
            Self::Word128(table) => mark(|place| table.row(place), ranges, |_, _| true, visited),
            Self::Bytes(table, build_keys) => {
                mark(|place| table.row(place), ranges, same_bytes(build_keys, keys), visited);
            }
        }
    }
}

/// Returns a comparison of the keys of a probe row and a build row with equal hashes.
fn same_bytes<'a>(build_keys: &'a KeyBytes, keys: &'a Keys) -> impl Fn(usize, u32) -> bool + 'a {
    let probe_keys = keys.bytes_of_rows();
    |probe, build| probe_keys.get(probe) == build_keys.get(build as usize)
}

#[inline(always)]
fn pairs(
    row_at: impl Fn(u32) -> u32,
    (ranges, row): (&mut Ranges, &mut usize),
    (limit, first_only): (usize, bool),
    same: impl Fn(usize, u32) -> bool,
    build: &mut Vec<u32>,
    probe: &mut Vec<u32>,
) -> bool {
    while let Some(begin) = ranges.begins.get_mut(*row) {
        let end = ranges.ends[*row];
        while *begin < end {
            if build.len() >= limit {
                return true;
            }
            let build_row = row_at(*begin);
            *begin += 1;
            if same(*row, build_row) {
                build.push(build_row);
                probe.push(*row as u32);
                if first_only {
                    *begin = end;
                }
            }
        }
        *row += 1;
    }
    false
}

fn mark(row_at: impl Fn(u32) -> u32, ranges: &Ranges, same: impl Fn(usize, u32) -> bool, visited: &VisitedRows) {
    for (row, (&begin, &end)) in ranges.begins.iter().zip(&ranges.ends).enumerate() {
        for build_row in (begin..end).map(&row_at).filter(|build_row| same(row, *build_row)) {
            if visited.get(build_row) {
                break;
            }
            visited.set(build_row);
        }
    }
}
