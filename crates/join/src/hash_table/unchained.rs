//! A hash table without chains: the rows of a bucket lie side by side.

use super::deal::{Dealt, Slots};
use crate::error::Result;
use crate::keys::Word;
use crate::memory::PageVec;

/// Buckets of more entries are searched by bisection.
const FEW_ENTRIES: usize = 8;

/// Keys whose cache misses overlap; what they bring in stays in the cache until it is looked at.
const LOOKED_UP_TOGETHER: usize = 512;

/// A hash table from packed keys to build rows (after the unchained tables of Birler, Schmidt, Fent and Neumann, 2024).
///
/// All entries are one array, ordered by bucket and within a bucket by key and row, and a directory says where each bucket
/// starts: a lookup costs one access to the directory and one to the entries, however many rows a key has. It is built
/// without locks or atomic operations: threads deal entries out by the bits of the bucket, and then each partition is
/// somebody's own.
#[derive(Debug)]
pub(crate) struct UnchainedTable<K: Word> {
    /// Where the entries of each bucket start, and where those of the last end.
    starts: PageVec<u32>,
    entries: PageVec<K::Entry>,
    mask: u64,
}

impl<K: Word> UnchainedTable<K> {
    /// Bytes that a row takes at most while the table is made: its entry, as dealt out and in place, and its share of the directory.
    pub const BYTES_PER_ROW: usize = 2 * size_of::<K::Entry>() + 2 * size_of::<u32>();

    /// A table of the rows for which `is_matchable` holds; `O(rows)` for a hash that spreads the keys.
    pub fn build(keys: &[K], is_matchable: impl Fn(usize) -> bool + Sync, threads: usize) -> Result<Self> {
        // Bits of the lower end: those of the upper end have been used to partition what was spilled.
        let buckets = keys.len().next_power_of_two();
        let mask = buckets as u64 - 1;
        let slots = Slots::cut(buckets, keys.len());
        let dealt = Dealt::new(keys.len(), slots, threads, |row| {
            let bucket = (keys[row].hash() & mask) as usize;
            is_matchable(row).then(|| (bucket, keys[row].entry(row as u32, bucket as u32)))
        });
        let mut starts = PageVec::<u32>::zeroed(buckets + 1)?;
        let mut entries = PageVec::<K::Entry>::zeroed(dealt.len())?;
        dealt.sort(
            &mut starts,
            &mut entries,
            K::bucket_of,
            |entry| entry,
            |bucket| {
                if bucket.len() > 1 {
                    // Rows of one key are in their order, which a stable sort keeps.
                    bucket.sort_by_key(K::of);
                }
            },
        );
        Ok(Self { starts, entries, mask })
    }

    /// The bytes the table takes.
    pub fn bytes(&self) -> usize {
        self.starts.bytes() + self.entries.bytes()
    }

    /// Appends where the entries of each key begin and end.
    pub fn find(&self, keys: &[K], begins: &mut Vec<u32>, ends: &mut Vec<u32>) {
        let (starts, entries): (&[u32], &[K::Entry]) = (&self.starts, &self.entries);
        for keys in keys.chunks(LOOKED_UP_TOGETHER) {
            let from = begins.len();
            // A pass for each cache miss, in which no branch depends on what is read, so that those of many keys overlap: first the
            // directory, then the first entry of each bucket.
            for key in keys {
                let bucket = (key.hash() & self.mask) as usize;
                begins.push(starts[bucket]);
                ends.push(starts[bucket + 1]);
            }
            let (begins, ends) = (&mut begins[from..], &mut ends[from..]);
            let mut is_first = [false; LOOKED_UP_TOGETHER];
            for ((key, begin), is_first) in keys.iter().zip(&*begins).zip(&mut is_first) {
                *is_first = entries.get(*begin as usize).is_some_and(|entry| K::of(entry) == *key);
            }
            for (((key, begin), end), is_first) in keys.iter().zip(begins).zip(ends).zip(is_first) {
                // Of buckets with one entry, or none, that tells all.
                if *end - *begin <= 1 {
                    *end = *begin + u32::from(is_first) * (*end - *begin);
                } else {
                    let bucket = &entries[*begin as usize..*end as usize];
                    let (first, after) = range_of(bucket, *key);
                    *end = *begin + after as u32;
                    *begin += first as u32;
                }
            }
        }
    }

    /// The row of an entry.
    #[inline(always)]
    pub fn row(&self, place: u32) -> u32 {
        K::row_of(&self.entries[place as usize])
    }
}

/// Where the entries of a key begin and end in its bucket.
#[inline(always)]
fn range_of<K: Word>(bucket: &[K::Entry], key: K) -> (usize, usize) {
    if bucket.len() > FEW_ENTRIES {
        let first = bucket.partition_point(|entry| K::of(entry) < key);
        let after = first + bucket[first..].partition_point(|entry| K::of(entry) == key);
        return (first, after);
    }
    // Counted without a branch on the keys, of which nobody knows which are there.
    let before = bucket.iter().map(|entry| usize::from(K::of(entry) < key)).sum::<usize>();
    let same = bucket.iter().map(|entry| usize::from(K::of(entry) == key)).sum::<usize>();
    (before, before + same)
}
