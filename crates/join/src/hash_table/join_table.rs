//! The hash table over keys of any layout, and the search for matches in it.

use arrow::row::Rows;

use super::chained::ChainedTable;
use super::visited::VisitedRows;
use crate::keys::hash_bytes;
use crate::keys::{KeyCodec, KeyData, Keys, Word};

/// A hash table over the keys of the build side.
#[derive(Debug)]
pub enum JoinTable {
    /// Keys of at most 64 bits.
    Word64(ChainedTable<u64>),
    /// Keys of at most 128 bits.
    Word128(ChainedTable<[u64; 2]>),
    /// Other keys: the table holds their hashes, and rows whose hashes agree are compared by their bytes.
    Rows(ChainedTable<u64>, Rows),
}

/// Where the search for the matches of a probe batch stands: for each probe row, the link to its next match.
#[derive(Debug, Default)]
pub struct MatchCursor {
    links: Vec<u32>,
    row: usize,
}

impl JoinTable {
    /// Builds the table; rows that cannot match are left out.
    pub fn build(keys: Keys) -> Self {
        let Keys { data, matchable } = keys;
        let is_matchable = |row: usize| matchable.as_ref().is_none_or(|matchable| matchable.is_valid(row));
        match data {
            KeyData::Word64(words) => Self::Word64(ChainedTable::build(words.iter().copied(), is_matchable)),
            KeyData::Word128(words) => Self::Word128(ChainedTable::build(words.into_iter(), is_matchable)),
            KeyData::Rows(rows) => {
                let hashes: Vec<_> = rows.iter().map(|row| hash_bytes(row.data())).collect();
                Self::Rows(ChainedTable::build(hashes.into_iter(), is_matchable), rows)
            }
        }
    }

    /// The most bytes that a row adds to a table while it is made, besides those of its key in row format.
    pub fn row_bytes(codec: &KeyCodec) -> usize {
        // The packed key, or its hash, that the entry is made from is alive beside it. Heads are a power of two, up to
        // twice the rows.
        let (packed, entry) = match codec.word_bytes() {
            Some(bytes) if bytes > size_of::<u64>() => (bytes, ChainedTable::<[u64; 2]>::ENTRY_BYTES),
            _ => (size_of::<u64>(), ChainedTable::<u64>::ENTRY_BYTES),
        };
        packed + entry + 2 * size_of::<u32>()
    }

    /// The bytes the table takes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Word64(table) => table.bytes(),
            Self::Word128(table) => table.bytes(),
            Self::Rows(table, rows) => table.bytes() + rows.size(),
        }
    }

    /// Starts the search for the matches of a probe batch.
    pub fn start(&self, keys: &Keys, cursor: &mut MatchCursor) {
        cursor.row = 0;
        let links = &mut cursor.links;
        match (self, &keys.data) {
            (Self::Word64(table), KeyData::Word64(words)) => find_all(table, words.iter().copied(), keys, links),
            (Self::Word128(table), KeyData::Word128(words)) => find_all(table, words.iter().copied(), keys, links),
            (Self::Rows(table, _), KeyData::Rows(rows)) => {
                let hashes: Vec<_> = rows.iter().map(|row| hash_bytes(row.data())).collect();
                find_all(table, hashes.into_iter(), keys, links);
            }
            _ => unreachable!("both sides of a join share one key codec"),
        }
    }

    /// Appends the next pairs of matching rows, at most `limit`; false once all have been found.
    ///
    /// Pairs come by ascending probe row, and for one probe row by ascending build row. With `first_only`, a probe row
    /// is paired with the first of its matches alone.
    pub fn next_pairs(
        &self,
        keys: &Keys,
        cursor: &mut MatchCursor,
        limit: usize,
        first_only: bool,
        build: &mut Vec<u32>,
        probe: &mut Vec<u32>,
    ) -> bool {
        match self {
            Self::Word64(table) => pairs(table, cursor, limit, first_only, |_, _| true, build, probe),
            Self::Word128(table) => pairs(table, cursor, limit, first_only, |_, _| true, build, probe),
            Self::Rows(table, build_rows) => {
                let same = same_bytes(build_rows, keys);
                pairs(table, cursor, limit, first_only, same, build, probe)
            }
        }
    }

    /// Marks every build row that matches a row of the probe batch.
    ///
    /// The rows of one key are always marked together, so they are passed over when the first of them is marked
    /// already: the cost is linear even if both sides consist of duplicates.
    pub fn mark_matches(&self, keys: &Keys, cursor: &MatchCursor, visited: &VisitedRows) {
        match self {
            Self::Word64(table) => mark(table, cursor, |_, _| true, visited),
            Self::Word128(table) => mark(table, cursor, |_, _| true, visited),
            Self::Rows(table, build_rows) => mark(table, cursor, same_bytes(build_rows, keys), visited),
        }
    }
}

/// Whether a probe and a build row, whose hashes agree, have equal keys.
fn same_bytes<'a>(build_rows: &'a Rows, keys: &'a Keys) -> impl Fn(usize, u32) -> bool + 'a {
    let KeyData::Rows(probe_rows) = &keys.data else { unreachable!("both sides of a join share one key codec") };
    |probe, build| probe_rows.row(probe).data() == build_rows.row(build as usize).data()
}

/// Looks up each key. First all heads, then all chains: the cache misses of many rows overlap.
fn find_all<K: Word>(
    table: &ChainedTable<K>,
    words: impl ExactSizeIterator<Item = K> + Clone,
    keys: &Keys,
    links: &mut Vec<u32>,
) {
    links.clear();
    links.extend(words.clone().map(|word| table.head(word)));
    if let Some(matchable) = &keys.matchable {
        for (row, link) in links.iter_mut().enumerate() {
            if matchable.is_null(row) {
                *link = 0;
            }
        }
    }
    for (word, link) in words.zip(links) {
        *link = table.find(word, *link);
    }
}

#[inline(always)]
fn pairs<K: Word>(
    table: &ChainedTable<K>,
    cursor: &mut MatchCursor,
    limit: usize,
    first_only: bool,
    same: impl Fn(usize, u32) -> bool,
    build: &mut Vec<u32>,
    probe: &mut Vec<u32>,
) -> bool {
    let full = build.len() + limit;
    while let Some(link) = cursor.links.get_mut(cursor.row) {
        while *link != 0 {
            if build.len() >= full {
                return true;
            }
            let build_row = *link - 1;
            *link = table.next_row(*link);
            if same(cursor.row, build_row) {
                build.push(build_row);
                probe.push(cursor.row as u32);
                if first_only {
                    *link = 0;
                }
            }
        }
        cursor.row += 1;
    }
    false
}

fn mark<K: Word>(
    table: &ChainedTable<K>,
    cursor: &MatchCursor,
    same: impl Fn(usize, u32) -> bool,
    visited: &VisitedRows,
) {
    for (row, &first) in cursor.links.iter().enumerate() {
        let mut link = first;
        while link != 0 {
            let build_row = link - 1;
            if same(row, build_row) {
                if visited.get(build_row) {
                    break;
                }
                visited.set(build_row);
            }
            link = table.next_row(link);
        }
    }
}
