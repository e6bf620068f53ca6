//! A hash table without chains: the rows of a bucket are adjacent.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use overspill_machine::memory::{PageVec, prefetch};

use super::LOOKED_UP_TOGETHER;
use super::bloom_filter::{BloomFilter, Passing};
use super::deal::{Dealt, HASH_BITS};
use super::matches::{BLOCK, Lookups, Matches};
use crate::error::Result;
use crate::keys::Word;

/// Larger buckets are searched by bisection.
const FEW_ENTRIES: usize = 8;

/// A hash table from packed keys to build rows (after the unchained tables of Birler, Schmidt, Fent and Neumann, 2024).
///
/// All entries are in one array, ordered by bucket and within a bucket by key and row. A directory stores where each bucket
/// starts. A lookup costs one access to the directory and one to the entries, however many rows a key has. The build uses no
/// locks or atomic operations: threads partition entries by the bits of the bucket, and then one thread owns each partition.
#[derive(Debug)]
pub(crate) struct UnchainedTable<K: Word> {
    /// The start of each bucket's entries, and the end of the last bucket.
    starts: PageVec<u32>,
    entries: PageVec<K::Entry>,
    /// The low bits of the hash that do not select the bucket.
    merged_bits: u32,
    is_unique: bool,
}

impl<K: Word> UnchainedTable<K> {
    /// Maximum bytes per row while the table is built: its entry, both partitioned and in place, and its share of the
    /// directory.
    pub const BYTES_PER_ROW: usize = size_of::<K::Entry>() * 17 / 8 + 3 * size_of::<u32>();

    /// Builds a table from the result of [`deal_by_hash`](super::deal::deal_by_hash) for `rows` rows; `entry_of`
    /// returns the entry of its words. `O(rows)` for a hash that
    /// spreads the keys.
    pub fn build<const WORDS: usize>(
        dealt: &Dealt<WORDS>,
        entry_of: impl Fn([u64; WORDS]) -> K::Entry + Sync,
        rows: usize,
    ) -> Result<Self> {
        // From 1.5 to 3 buckets per row, and at least two. They use the upper bits of the partitioning hash, which is the lower
        // half of the hash.
        let bits = (rows + rows / 2).max(2).next_power_of_two().ilog2().min(HASH_BITS);
        let merged_bits = HASH_BITS - bits;
        let mut starts = PageVec::<u32>::zeroed((1 << bits) + 1)?;
        let mut entries = PageVec::<K::Entry>::zeroed(dealt.len())?;
        let is_unique = AtomicBool::new(true);
        dealt.sort(
            merged_bits,
            &mut starts,
            &mut entries,
            |words| K::hash_of(&entry_of(*words)),
            &entry_of,
            |bucket| {
                if bucket.len() > 1 {
                    // Rows of one key are in row order, which a stable sort keeps.
                    bucket.sort_by_key(K::of);
                    if bucket.windows(2).any(|pair| K::of(&pair[0]) == K::of(&pair[1])) {
                        is_unique.store(false, Ordering::Relaxed);
                    }
                }
            },
        );
        Ok(Self { starts, entries, merged_bits, is_unique: is_unique.into_inner() })
    }

    #[inline(always)]
    fn bucket(&self, key: K) -> usize {
        (u64::from(key.hash() as u32) >> self.merged_bits) as usize
    }

    /// Whether every key has at most one row, so that [`UnchainedTable::find_one`] finds all matches.
    pub fn is_unique(&self) -> bool {
        self.is_unique
    }

    /// Finds the build row of each key in the table, and the probe row of the key. Only for unique keys.
    ///
    /// Makes one pass per cache miss, first over the directory, then over the first two entries of each bucket. In a pass no
    /// branch depends on the data read, so that the misses of many keys overlap.
    pub fn find_one(&self, lookups: Lookups<'_, K>, build: &mut Vec<u32>, probe: &mut Vec<u32>) {
        let (starts, entries): (&[u32], &[K::Entry]) = (&self.starts, &self.entries);
        if let Some(filter) = lookups.filter {
            return self.find_few(lookups, filter, build, probe);
        }
        let mut matches = Matches::new(&lookups, build, probe);
        for keys in lookups.keys.chunks(LOOKED_UP_TOGETHER) {
            let mut buckets = [(0, 0); LOOKED_UP_TOGETHER];
            for (key, bucket) in keys.iter().zip(&mut buckets) {
                let number = self.bucket(*key);
                *bucket = (starts[number], starts[number + 1]);
            }
            // An entry of another bucket has another key, so the end of the bucket need not be checked.
            let is_at = |place: u32, key: K| entries.get(place as usize).is_some_and(|entry| K::of(entry) == key);
            let mut are_first = [false; LOOKED_UP_TOGETHER];
            for ((key, (begin, _)), is_first) in keys.iter().zip(&buckets).zip(&mut are_first) {
                *is_first = is_at(*begin, *key);
            }
            let rows = matches.block(keys.len());
            let mut found = [0u64; LOOKED_UP_TOGETHER / BLOCK];
            for (number, ((key, row), ((begin, end), is_first))) in
                keys.iter().zip(rows).zip(buckets.into_iter().zip(are_first)).enumerate()
            {
                let is_second = !is_first & is_at(begin + 1, *key);
                let mut place = begin + u32::from(is_second);
                let mut is_found = is_first | is_second;
                if !is_found && end - begin > 2 {
                    let later = (begin + 2..end).find(|place| is_at(*place, *key));
                    (place, is_found) = (later.unwrap_or(0), later.is_some());
                }
                *row = entries.get(place as usize).map_or(0, K::row_of);
                found[number / BLOCK] |= u64::from(is_found) << (number % BLOCK);
            }
            matches.keep(keys.len(), &found);
        }
        matches.finish();
    }

    /// Like `find_one` if few keys match: looks up only the keys that pass the filter.
    fn find_few(&self, lookups: Lookups<'_, K>, filter: &BloomFilter, build: &mut Vec<u32>, probe: &mut Vec<u32>) {
        let mut matches = Matches::few(&lookups, build, probe);
        for keys in lookups.keys.chunks(LOOKED_UP_TOGETHER) {
            let passing = filter.passing(keys.iter().map(|key| key.hash() as u32));
            let found = self.buckets(keys, &passing).filter_map(|(number, bucket)| {
                let entry = self.entries[bucket].iter().find(|entry| K::of(entry) == keys[number])?;
                Some((number, K::row_of(entry)))
            });
            matches.keep_few(keys.len(), found);
        }
        matches.finish();
    }

    /// Returns the numbers of the passing keys, with the entry ranges of their buckets. All cache lines are prefetched before
    /// the first item is returned.
    #[inline(always)]
    fn buckets(&self, keys: &[K], passing: &Passing) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (starts, entries): (&[u32], &[K::Entry]) = (&self.starts, &self.entries);
        passing.numbers().for_each(|number| prefetch(&starts[self.bucket(keys[number])]));
        let mut buckets = [(0, 0); LOOKED_UP_TOGETHER];
        for (number, place) in passing.numbers().zip(&mut buckets) {
            let bucket = self.bucket(keys[number]);
            *place = (starts[bucket], starts[bucket + 1]);
            if let Some(entry) = entries.get(place.0 as usize) {
                prefetch(entry);
            }
        }
        passing.numbers().zip(buckets).map(|(number, (begin, end))| (number, begin as usize..end as usize))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The hashes of the keys, in any order.
    pub fn hashes(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().map(K::hash_of)
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.starts.bytes() + self.entries.bytes()
    }

    /// Appends the range of entries of each key, and returns how many keys have entries. Keys that do not pass the filter get
    /// an empty range.
    pub fn find(&self, keys: &[K], filter: Option<&BloomFilter>, begins: &mut Vec<u32>, ends: &mut Vec<u32>) -> usize {
        let from = begins.len();
        begins.resize(from + keys.len(), 0);
        ends.resize(from + keys.len(), 0);
        let places = begins[from..].chunks_mut(LOOKED_UP_TOGETHER).zip(ends[from..].chunks_mut(LOOKED_UP_TOGETHER));
        let mut found = 0;
        for (keys, (begins, ends)) in keys.chunks(LOOKED_UP_TOGETHER).zip(places) {
            let passing = match filter {
                Some(filter) => filter.passing(keys.iter().map(|key| key.hash() as u32)),
                None => Passing::all(keys.len()),
            };
            for (number, bucket) in self.buckets(keys, &passing) {
                let Range { start, end } = self.range_of(bucket, keys[number]);
                (begins[number], ends[number]) = (start, end);
                found += usize::from(start < end);
            }
        }
        found
    }

    /// The range of a key's entries in its bucket.
    #[inline(always)]
    fn range_of(&self, bucket: Range<usize>, key: K) -> Range<u32> {
        let (begin, entries): (_, &[K::Entry]) = (bucket.start as u32, &self.entries);
        if bucket.len() <= 2 {
            // An entry of another bucket has another key, so no branch depends on the number of entries.
            let is_at = |place: usize| u32::from(entries.get(place).is_some_and(|entry| K::of(entry) == key));
            let (first, second) = (is_at(bucket.start), is_at(bucket.start + 1));
            let begin = begin + (second & !first & 1);
            return begin..begin + first + second;
        }
        let bucket = &entries[bucket];
        if bucket.len() > FEW_ENTRIES {
            let first = bucket.partition_point(|entry| K::of(entry) < key);
            let after = first + bucket[first..].partition_point(|entry| K::of(entry) == key);
            return begin + first as u32..begin + after as u32;
        }
        // Counts without branches on the keys, because the matches are unpredictable.
        let before = bucket.iter().map(|entry| u32::from(K::of(entry) < key)).sum::<u32>();
        let same = bucket.iter().map(|entry| u32::from(K::of(entry) == key)).sum::<u32>();
        begin + before..begin + before + same
    }

    /// The row of an entry.
    #[inline(always)]
    pub fn row(&self, place: u32) -> u32 {
        K::row_of(&self.entries[place as usize])
    }
}
