//! A hash table that chains the rows of a bucket.

use crate::keys::Word;

/// A bucket-chaining hash table from packed keys to build rows.
///
/// There is an entry a row, in row order, that holds the key beside its links: a lookup costs one access for the head
/// of the bucket and one for each entry on the way. A bucket chains only rows of different keys; the rows of one key
/// hang off the first of them in a chain of their own, so that a key with many rows does not slow down the keys that
/// share its bucket. Links are row numbers plus one, so that zeroed memory is an empty table.
#[derive(Debug)]
pub struct ChainedTable<K> {
    heads: Vec<u32>,
    entries: Vec<Entry<K>>,
    mask: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry<K> {
    key: K,
    /// The first row of the bucket's next key plus one; 0 ends the chain.
    next_key: u32,
    /// The next row of this key plus one; 0 ends the chain.
    next_row: u32,
}

impl<K: Word> ChainedTable<K> {
    /// The most rows a table can hold.
    pub const MAX_ROWS: usize = (u32::MAX - 1) as usize;

    /// The bytes a row takes besides its share of the heads.
    pub const ENTRY_BYTES: usize = size_of::<Entry<K>>();

    /// Builds a table of the rows for which `is_matchable` holds; `O(rows)` for a hash that spreads the keys.
    ///
    /// The rows of a key are chained in ascending order.
    ///
    /// # Panics
    /// Panics on more than [`MAX_ROWS`](Self::MAX_ROWS) rows.
    pub fn build(keys: impl ExactSizeIterator<Item = K>, is_matchable: impl Fn(usize) -> bool) -> Self {
        let rows = keys.len();
        assert!(rows <= Self::MAX_ROWS, "a hash table holds at most {} rows", Self::MAX_ROWS);
        let mask = bucket_count(rows) as u64 - 1;
        let heads = vec![0_u32; mask as usize + 1];
        let entries = keys.map(|key| Entry { key, next_key: 0, next_row: 0 }).collect();
        let mut table = Self { heads, entries, mask };
        // Backwards, so that the lowest row of a key ends up first.
        for row in (0..rows).rev() {
            if is_matchable(row) {
                table.insert(row);
            }
        }
        table
    }

    /// Puts a row in front of the rows of its key.
    fn insert(&mut self, row: usize) {
        let link = row as u32 + 1;
        let key = self.entries[row].key;
        let bucket = (key.hash() & self.mask) as usize;
        let first = self.heads[bucket];
        let (mut previous, mut current) = (0, first);
        while current != 0 {
            let entry = self.entries[current as usize - 1];
            if entry.key == key {
                // The new row takes the old one's place in the bucket.
                self.entries[row] = Entry { key, next_key: entry.next_key, next_row: current };
                match previous {
                    0 => self.heads[bucket] = link,
                    _ => self.entries[previous as usize - 1].next_key = link,
                }
                return;
            }
            (previous, current) = (current, entry.next_key);
        }
        self.entries[row].next_key = first;
        self.heads[bucket] = link;
    }

    /// The bytes the table takes.
    pub fn bytes(&self) -> usize {
        self.heads.len() * size_of::<u32>() + self.entries.len() * Self::ENTRY_BYTES
    }

    /// The link to the first key in the bucket of `key`.
    #[inline(always)]
    pub fn head(&self, key: K) -> u32 {
        self.heads[(key.hash() & self.mask) as usize]
    }

    /// The link to the first row of `key`, starting at a link to a key of its bucket; 0 if there is none.
    #[inline(always)]
    pub fn find(&self, key: K, mut link: u32) -> u32 {
        while link != 0 {
            let entry = &self.entries[link as usize - 1];
            if entry.key == key {
                break;
            }
            link = entry.next_key;
        }
        link
    }

    /// The link to the next row of the same key.
    #[inline(always)]
    pub fn next_row(&self, link: u32) -> u32 {
        self.entries[link as usize - 1].next_row
    }
}

/// One bucket a row, rounded up to a power of two.
fn bucket_count(rows: usize) -> usize {
    rows.next_power_of_two().max(1)
}
