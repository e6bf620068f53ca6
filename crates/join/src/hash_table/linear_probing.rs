//! Linear probing over cache lines.

use std::sync::atomic::{AtomicBool, Ordering};

use overspill_machine::memory::{CacheLine, PageVec, prefetch};
use overspill_machine::vectors::{VectorLoop, Vectors, with_widest_vectors};

use super::LOOKED_UP_TOGETHER;
use super::bloom_filter::BloomFilter;
use super::deal::Dealt;
use super::matches::{BLOCK, Lookups, Matches, set_bits};
use super::slots::AHEAD;
use crate::error::Result;
use crate::keys::Word;
use crate::parallel::in_parallel;

/// Entries per line: a cache line stores their keys and then their values.
const ENTRIES: usize = 4;

/// Three lines for seven rows: 58 % of the places are occupied, and 19 of 20 keys are in their home line.
const LINES: usize = 3;
const ROWS: usize = 7;

/// Maximum size of a partition relative to the average. Larger differences are not by chance but due to repeated keys.
const MAX_SPREAD: f64 = 1.02;
/// Allowance in rows for small partitions, where chance causes larger relative differences.
const MAX_SPREAD_ROWS: usize = 64;

/// Keys are stored XORed with this value, so that an empty place is 0 and zeroed memory from the system need not be filled. If
/// a row has exactly this key, [`LinearProbingTable::build`] rejects all rows.
const EMPTY: u64 = 0xA5C3_1F7E_90B2_64D8;

/// A hash table from unique 64-bit keys to 64-bit values, in which most lookups touch one cache line (linear probing, as in
/// paper 2, section 7.1, line by line).
///
/// The build uses no locks or atomic operations: rows are partitioned by hash, and each partition has its own range of lines.
/// At the end of the range, probing continues at its beginning.
#[derive(Debug)]
pub(crate) struct LinearProbingTable {
    lines: PageVec<CacheLine>,
    lines_per_partition: usize,
}

impl LinearProbingTable {
    /// Bytes of lines per row.
    pub const TABLE_BYTES_PER_ROW: usize = size_of::<CacheLine>() * LINES / ROWS + 1;

    /// Maximum bytes per row while the table is built: its partitioned entry, and its share of the lines.
    pub const BYTES_PER_ROW: usize = Dealt::<2>::ITEM_BYTES + Self::TABLE_BYTES_PER_ROW;

    /// Builds a table of keys and values that were partitioned by hash; `value_of` maps values. Returns `None` if keys repeat
    /// or a key equals the mark of empty places. `O(rows)`.
    pub fn build(dealt: &Dealt<2>, value_of: impl Fn(u64) -> u64 + Sync) -> Result<Option<Self>> {
        let partitions = dealt.counts().count();
        let most = dealt.counts().max().unwrap_or(0);
        if most as f64 > MAX_SPREAD * (dealt.len() / partitions) as f64 + MAX_SPREAD_ROWS as f64 {
            return Ok(None);
        }
        let lines_per_partition = (most * LINES).div_ceil(ROWS).max(1);
        let mut lines = PageVec::<CacheLine>::zeroed(lines_per_partition * partitions)?;
        let total = lines.len();
        let is_refused = AtomicBool::new(false);
        let stretches = lines.chunks_mut(lines_per_partition).enumerate().collect();
        in_parallel(dealt.threads(), stretches, |(partition, stretch): (usize, &mut [CacheLine])| {
            let own = |key: u64| line_of(key, total) - partition * lines_per_partition;
            dealt.for_some(partition, |[keys, values]| {
                keys.iter().take(AHEAD).for_each(|key| prefetch(&stretch[own(*key)]));
                for (number, (key, value)) in keys.iter().zip(values).enumerate() {
                    prefetch(&stretch[own(keys[(number + AHEAD).min(keys.len() - 1)])]);
                    if !insert(stretch, own(*key), *key, value_of(*value)) {
                        is_refused.store(true, Ordering::Relaxed);
                        return false;
                    }
                }
                !is_refused.load(Ordering::Relaxed)
            });
        });
        Ok((!is_refused.into_inner()).then_some(Self { lines, lines_per_partition }))
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.lines.bytes()
    }

    /// Finds the value of each key in the table, mapped by `of`, and the row of the key.
    pub fn find_one<T: Copy + Default>(
        &self,
        lookups: Lookups<'_, u64>,
        of: impl Fn(u64) -> T,
        values: &mut Vec<T>,
        rows: &mut Vec<u32>,
    ) {
        with_widest_vectors(FindOne { table: self, lookups, of, values, rows });
    }

    /// Maximum number of keys for the number of lines.
    pub fn capacity(&self) -> usize {
        self.lines.len() * ROWS / LINES
    }

    /// The hashes of the keys, in any order.
    pub fn hashes(&self) -> impl Iterator<Item = u32> {
        let keys = self.lines.iter().flat_map(|line| &line.0[..ENTRIES]).filter(|key| **key != 0);
        keys.map(|key| (key ^ EMPTY).hash() as u32)
    }

    /// The value of a key that is not in its home line, after that line has overflowed.
    #[inline(always)]
    fn find_beyond(&self, key: u64, vectors: impl Vectors) -> Option<u64> {
        if key == EMPTY {
            return None;
        }
        let own = line_of(key, self.lines.len());
        let begin = own - own % self.lines_per_partition;
        let stretch = &self.lines[begin..begin + self.lines_per_partition];
        for line in stretch[own - begin + 1..].iter().chain(&stretch[..own - begin]) {
            let (value, is_here) = search(line, key, vectors);
            if is_here {
                return Some(value);
            }
            if !has_overflowed(line) {
                return None;
            }
        }
        None
    }
}

/// A lookup of many keys; `of` maps the value of each key found.
struct FindOne<'a, T, F> {
    table: &'a LinearProbingTable,
    lookups: Lookups<'a, u64>,
    of: F,
    values: &'a mut Vec<T>,
    rows: &'a mut Vec<u32>,
}

impl<T: Copy + Default, F: Fn(u64) -> T> VectorLoop for FindOne<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn run(self, vectors: impl Vectors) {
        match self.lookups.filter {
            Some(filter) => self.find_few(filter, vectors),
            None => self.find(vectors),
        }
    }
}

impl<T: Copy + Default, F: Fn(u64) -> T> FindOne<'_, T, F> {
    /// Pipelines three blocks: while one block is searched, the lines of the next are prefetched, and the overflow lines of the
    /// previous one arrive. Cache misses are always outstanding, and hardly any branch depends on the data read.
    #[inline(always)]
    fn find(self, vectors: impl Vectors) {
        let Self { table, lookups, of, values, rows } = self;
        let lines: &[CacheLine] = &table.lines;
        let mut matches = Matches::new(&lookups, values, rows);
        let mut blocks = [Block::default(); 3];
        let mut keys = lookups.keys.chunks(BLOCK);
        let [mut last, mut current, mut next] = blocks.each_mut();
        current.begin(keys.next().unwrap_or_default(), lines.len());
        current.places[..current.keys.len()].iter().for_each(|place| prefetch(&lines[*place]));
        while !current.keys.is_empty() {
            next.begin(keys.next().unwrap_or_default(), lines.len());
            current.search(lines, &of, &next.places, vectors);
            last.finish(table, &of, &mut matches, vectors);
            (last, current, next) = (current, next, last);
        }
        last.finish(table, &of, &mut matches, vectors);
        matches.finish();
    }

    /// Like `find` if few keys match: looks up only the keys that pass the filter.
    #[inline(always)]
    fn find_few(self, filter: &BloomFilter, vectors: impl Vectors) {
        let Self { table, lookups, of, values, rows } = self;
        let lines: &[CacheLine] = &table.lines;
        let mut matches = Matches::few(&lookups, values, rows);
        for keys in lookups.keys.chunks(LOOKED_UP_TOGETHER) {
            let passing = filter.passing(keys.iter().map(|key| key.hash() as u32));
            let line_of = |number: usize| &lines[line_of(keys[number], lines.len())];
            passing.numbers().for_each(|number| prefetch(line_of(number)));
            let found = passing.numbers().filter_map(|number| {
                let (line, key) = (line_of(number), keys[number]);
                let (value, is_here) = search(line, key, vectors);
                // The mark of empty places matches every line that has an empty place.
                let value = if is_here && key != EMPTY {
                    Some(value)
                } else if has_overflowed(line) {
                    table.find_beyond(key, vectors)
                } else {
                    None
                };
                Some((number, of(value?)))
            });
            matches.keep_few(keys.len(), found);
        }
        matches.finish();
    }
}

/// Keys that are looked up together.
#[derive(Debug, Clone, Copy)]
struct Block<'a, T> {
    keys: &'a [u64],
    /// The home lines of the keys. Places beyond the last key are those of other keys; prefetching them is harmless.
    places: [usize; BLOCK],
    values: [T; BLOCK],
    /// A bit for each key found.
    found: u64,
    /// The numbers of the keys that may have overflowed from their home line.
    open: [u8; BLOCK],
    open_count: usize,
}

impl<T: Copy + Default> Default for Block<'_, T> {
    fn default() -> Self {
        let (places, values, open) = ([0; BLOCK], [T::default(); BLOCK], [0; BLOCK]);
        Self { keys: &[], places, values, found: 0, open, open_count: 0 }
    }
}

impl<'a, T: Copy + Default> Block<'a, T> {
    #[inline(always)]
    fn begin(&mut self, keys: &'a [u64], lines: usize) {
        self.keys = keys;
        for (key, place) in keys.iter().zip(&mut self.places) {
            *place = line_of(*key, lines);
        }
    }

    /// Searches the home line of each key, and prefetches the lines of the next block.
    #[inline(always)]
    fn search(&mut self, lines: &[CacheLine], of: impl Fn(u64) -> T, next: &[usize; BLOCK], vectors: impl Vectors) {
        let keys = self.keys;
        let mut bits = 0;
        for (((key, value), place), next) in keys.iter().zip(&mut self.values).zip(&self.places).zip(next) {
            prefetch(&lines[*next]);
            let (found, is_here) = search(&lines[*place], *key, vectors);
            *value = of(found);
            // Shifts in from above: a shift by a number that varies by key takes longer.
            bits = bits >> 1 | u64::from(is_here) << (BLOCK - 1);
        }
        self.found = bits >> (BLOCK - keys.len());
        // Separate from the search, so that many keys are compared at once.
        if keys.iter().fold(false, |has_mark, key| has_mark | (*key == EMPTY)) {
            // The mark matches every line that is not full.
            let is_mark = |number: &usize| keys[*number] == EMPTY;
            (0..keys.len()).filter(is_mark).for_each(|number| self.found &= !(1 << number));
        }
        self.open_count = 0;
        for number in set_bits(!self.found & (u64::MAX >> (BLOCK - keys.len()))) {
            // The key may have overflowed, usually to the next line.
            self.open[self.open_count] = number as u8;
            self.open_count += usize::from(has_overflowed(&lines[self.places[number]]));
        }
        for number in &self.open[..self.open_count] {
            prefetch(line_after(lines, self.places[usize::from(*number)]));
        }
    }

    /// Searches for keys that overflowed, and passes on the matches. The block is empty afterwards.
    #[inline(always)]
    fn finish(
        &mut self,
        table: &LinearProbingTable,
        of: impl Fn(u64) -> T,
        matches: &mut Matches<'_, T>,
        vectors: impl Vectors,
    ) {
        let keys = std::mem::take(&mut self.keys);
        if keys.is_empty() {
            return;
        }
        for number in self.open[..self.open_count].iter().map(|number| usize::from(*number)) {
            let key = keys[number];
            // Whether or not the search really continues in the next line: a key found there is nowhere else.
            let value = match search(line_after(&table.lines, self.places[number]), key, vectors) {
                (value, true) if key != EMPTY => Some(value),
                _ => table.find_beyond(key, vectors),
            };
            if let Some(value) = value {
                self.values[number] = of(value);
                self.found |= 1 << number;
            }
        }
        matches.block(keys.len()).copy_from_slice(&self.values[..keys.len()]);
        matches.keep(keys.len(), &[self.found]);
    }
}

/// The line after `place`, or the first line after the last.
#[inline(always)]
fn line_after(lines: &[CacheLine], place: usize) -> &CacheLine {
    lines.get(place + 1).unwrap_or(&lines[0])
}

/// The home line of a key among `lines` lines: its hash as a share of the hash range. All partitions have the same number of
/// lines, so a partition, which is a range of hashes, is a range of lines.
#[inline(always)]
fn line_of(key: u64, lines: usize) -> usize {
    ((u64::from(key.hash() as u32) * lines as u64) >> 32) as usize
}

/// The value of a key, and whether the key is in the line. The mark of empty places matches every line with an empty place.
#[inline(always)]
fn search(line: &CacheLine, key: u64, vectors: impl Vectors) -> (u64, bool) {
    let equal = vectors.equal_to(line, key ^ EMPTY);
    // If the key is absent, the value is arbitrary: the bit that is always set selects the first.
    let number = (equal | 1 << ENTRIES).trailing_zeros() as usize % ENTRIES;
    (line.0[ENTRIES + number], equal != 0)
}

/// Whether keys overflowed from the line to the next one. The order of the last two entries encodes this: ascending keys mean
/// yes. A line that is not full has an empty place, which is 0, at the end.
#[inline(always)]
fn has_overflowed(line: &CacheLine) -> bool {
    line.0[ENTRIES - 2] < line.0[ENTRIES - 1]
}

/// Encodes in the order of the last two entries of a full line whether it has overflowed.
fn tell_overflow(line: &mut CacheLine, overflowed: bool) {
    if has_overflowed(line) != overflowed {
        line.0.swap(ENTRIES - 2, ENTRIES - 1);
        line.0.swap(2 * ENTRIES - 2, 2 * ENTRIES - 1);
    }
}

/// Inserts an entry into the first free place from its home line on. Returns false if the key is already in the table.
fn insert(stretch: &mut [CacheLine], own: usize, key: u64, value: u64) -> bool {
    if key == EMPTY {
        return false;
    }
    let lines = stretch.len();
    for number in (own..lines).chain(0..own) {
        let line = &mut stretch[number];
        let (keys, values) = line.0.split_at_mut(ENTRIES);
        if keys.iter().fold(false, |is_there, entry| is_there | (*entry == key ^ EMPTY)) {
            return false;
        }
        // Places are filled in order. Counts them without a search, because the number is unpredictable.
        let taken = keys.iter().map(|entry| usize::from(*entry != 0)).sum::<usize>();
        if taken < ENTRIES {
            (keys[taken], values[taken]) = (key ^ EMPTY, value);
            if taken == ENTRIES - 1 {
                tell_overflow(line, false);
            }
            return true;
        }
        tell_overflow(line, true);
    }
    false
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use arrow::buffer::NullBuffer;
    use overspill_machine::vectors::Baseline;

    use super::super::deal::{Dealt, HASH_BITS, Slots};
    use super::*;

    /// A table in which the value of each key is its bitwise complement.
    fn table(keys: &[u64], threads: usize) -> Option<LinearProbingTable> {
        let dealt = Dealt::new(keys.len(), Slots::cut(1 << HASH_BITS, keys.len()), threads, |row| {
            Some((keys[row].hash() as u32 as usize, [keys[row], !keys[row]]))
        });
        LinearProbingTable::build(&dealt.unwrap(), |value| value).unwrap()
    }

    /// The matches; they must be the same with and without a filter, and with all vector widths.
    fn find(table: &LinearProbingTable, keys: &[u64]) -> Vec<(u32, u64)> {
        let matchable: NullBuffer = (0..keys.len() + 10).map(|row| row != 12).collect();
        let filter = BloomFilter::of(table.capacity(), table.hashes()).unwrap();
        let find = |filter, is_wide| {
            let (mut values, mut rows) = (vec![], vec![]);
            let lookups = Lookups { first: 10, keys, matchable: Some(&matchable), are_few: false, filter };
            if is_wide {
                table.find_one(lookups, |value| value, &mut values, &mut rows);
            } else {
                FindOne { table, lookups, of: |value| value, values: &mut values, rows: &mut rows }.run(Baseline);
            }
            rows.into_iter().zip(values).collect::<Vec<_>>()
        };
        let found = find(None, true);
        for (filter, is_wide) in [(None, false), (Some(&filter), true), (Some(&filter), false)] {
            assert_eq!(find(filter, is_wide), found);
        }
        found
    }

    #[test]
    fn all_keys_are_found_and_no_others() {
        for count in [0, 1, 3, 4, 100, 5_000, 400_000u64] {
            let key = |number: u64| number.wrapping_mul(0xA24B_AED4_963E_E407);
            let keys: Vec<_> = (0..count).map(key).collect();
            let there: HashSet<_> = keys.iter().copied().collect();
            for threads in [1, 3] {
                let table = table(&keys, threads).unwrap();
                // One of three keys is in the table, and the third row cannot match.
                let probe: Vec<_> = (0..3 * count.max(1)).rev().map(key).collect();
                let expected: Vec<_> = (10u32..)
                    .zip(&probe)
                    .filter(|(row, key)| *row != 12 && there.contains(key))
                    .map(|(row, key)| (row, !*key))
                    .collect();
                assert_eq!(find(&table, &probe), expected, "{count} keys, {threads} threads");
                // Full, nearly full and empty blocks.
                for keys in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK].map(|keys| keys.min(probe.len())) {
                    let some: Vec<_> =
                        expected.iter().copied().take_while(|(row, _)| *row < 10 + keys as u32).collect();
                    assert_eq!(find(&table, &probe[..keys]), some, "{keys} of {count} keys");
                }
            }
        }
    }

    #[test]
    fn lines_overflow_into_those_that_follow_and_from_the_last_into_the_first() {
        // Keys with hashes at the upper end of the range: their home lines are the last ones.
        let last = |key: &u64| key.hash() as u32 > u32::MAX - (1 << 24);
        let mut keys: Vec<u64> = (0..).filter(last).take(50).collect();
        keys.extend((0..100_000u64).map(|key| key | 1 << 40));
        let (there, missing) = keys.split_at(keys.len() - 1_000);
        let table = table(there, 2).unwrap();
        assert_eq!(find(&table, there).len(), there.len() - 1);
        assert!(find(&table, missing).is_empty());
        // All of them in one of a few lines.
        let few: Vec<u64> = keys[..50].to_vec();
        let table = super::tests::table(&few, 1).unwrap();
        assert_eq!(find(&table, &few).len(), 49);
    }

    #[test]
    fn keys_that_repeat_and_the_mark_of_empty_places_are_refused() {
        let mut keys: Vec<u64> = (0..200_000).collect();
        assert!(table(&keys, 2).is_some());
        keys[150_000] = 17;
        assert!(table(&keys, 2).is_none());
        keys[150_000] = EMPTY;
        assert!(table(&keys, 2).is_none());
        assert!(table(&[5; 300_000], 2).is_none());
        // The mark is not found either, whether its home line has room or not.
        for count in [10, 200_000] {
            let table =
                table(&keys[..count], 1).unwrap_or_else(|| table(&(0..200_000).collect::<Vec<_>>(), 1).unwrap());
            assert!(find(&table, &[EMPTY; 20]).is_empty());
        }
    }
}
