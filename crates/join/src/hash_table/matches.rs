//! Looks up a batch of keys, each of which is in the table at most once.

use arrow::buffer::NullBuffer;
use overspill_machine::memory::prefetch;
use overspill_machine::vectors::{VectorLoop, Vectors, with_widest_vectors};

use super::LOOKED_UP_TOGETHER;
use super::bloom_filter::{BloomFilter, Passing};
use super::slots::AHEAD;
use crate::radix::region_of_this_machine;

/// Keys per result word, one bit each.
pub(super) const BLOCK: usize = u64::BITS as usize;

/// Keys of consecutive rows to look up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lookups<'a, K> {
    /// The row of the first key.
    pub first: usize,
    pub keys: &'a [K],
    /// The rows that can match, counted from 0 and not from `first`; `None` if all can.
    pub matchable: Option<&'a NullBuffer>,
    /// Whether few of the recently looked up keys were in the table.
    pub are_few: bool,
    /// Rejects most keys that are not in the table; `None` if most keys are, or if the table has no filter.
    pub filter: Option<&'a BloomFilter>,
}

/// The matches: for each key found, in key order, a value and the row of the key. Both vectors are overwritten, whatever their
/// contents.
#[derive(Debug)]
pub(super) struct Matches<'a, T> {
    values: &'a mut Vec<T>,
    rows: &'a mut Vec<u32>,
    matchable: Option<&'a NullBuffer>,
    /// Matches so far.
    count: usize,
    /// The row of the next key.
    row: usize,
}

impl<'a, T: Copy + Default> Matches<'a, T> {
    /// Makes room for one match per key.
    pub fn new<K>(lookups: &Lookups<'a, K>, values: &'a mut Vec<T>, rows: &'a mut Vec<u32>) -> Self {
        values.resize(lookups.keys.len(), T::default());
        rows.resize(lookups.keys.len(), 0);
        Self { values, rows, matchable: lookups.matchable, count: 0, row: lookups.first }
    }

    /// Starts matches that [`Matches::keep_few`] adds, for keys that rarely match. Makes no room in advance.
    pub fn few<K>(lookups: &Lookups<'a, K>, values: &'a mut Vec<T>, rows: &'a mut Vec<u32>) -> Self {
        values.clear();
        rows.clear();
        Self { values, rows, matchable: lookups.matchable, count: 0, row: lookups.first }
    }

    /// The places for the values of the next `keys` keys, including keys not found. Call [`Matches::keep`] afterwards.
    #[inline(always)]
    pub fn block(&mut self, keys: usize) -> &mut [T] {
        &mut self.values[self.count..][..keys]
    }

    /// Keeps the values of the next `keys` keys whose bits in `found` are set.
    #[inline(always)]
    pub fn keep(&mut self, keys: usize, found: &[u64]) {
        let mut from = self.count;
        for (bits, block) in found.iter().zip((0..keys).step_by(BLOCK)) {
            let keys = (keys - block).min(BLOCK);
            self.keep_block(from, keys, *bits);
            from += keys;
        }
    }

    #[inline(always)]
    fn keep_block(&mut self, from: usize, keys: usize, found: u64) {
        let row = self.row;
        self.row += keys;
        let mut found = match self.matchable {
            Some(matchable) => found & bits(keys, |key| matchable.is_valid(row + key)),
            None => found,
        };
        let all = u64::MAX >> (BLOCK - keys);
        found &= all;
        if found == all {
            if from != self.count {
                self.values.copy_within(from..from + keys, self.count);
            }
            for (row, place) in (row as u32..).zip(&mut self.rows[self.count..][..keys]) {
                *place = row;
            }
            self.count += keys;
            return;
        }
        for key in set_bits(found) {
            self.values[self.count] = self.values[from + key];
            self.rows[self.count] = (row + key) as u32;
            self.count += 1;
        }
    }

    /// Keeps the values found for the next `keys` keys, each with the number of its key. Only for [`Matches::few`].
    #[inline(always)]
    pub fn keep_few(&mut self, keys: usize, found: impl Iterator<Item = (usize, T)>) {
        for (number, value) in found {
            let row = self.row + number;
            if self.matchable.is_none_or(|matchable| matchable.is_valid(row)) {
                self.values.push(value);
                self.rows.push(row as u32);
                self.count += 1;
            }
        }
        self.row += keys;
    }

    /// Truncates the vectors to the matches.
    pub fn finish(self) {
        self.values.truncate(self.count);
        self.rows.truncate(self.count);
    }
}

/// The positions of the set bits.
#[inline(always)]
pub(super) fn set_bits(bits: u64) -> impl Iterator<Item = usize> {
    let mut rest = bits;
    std::iter::from_fn(move || {
        let bit = rest.trailing_zeros() as usize;
        rest &= rest.wrapping_sub(1);
        (bit < BLOCK).then_some(bit)
    })
}

/// A bitmap of `keys` keys.
#[inline(always)]
fn bits(keys: usize, is_set: impl Fn(usize) -> bool) -> u64 {
    (0..keys).fold(0, |bits, key| bits | u64::from(is_set(key)) << key)
}

/// Looks up all keys in an array, with one read per key. The slot of a key is its distance from `smallest`. The last slot
/// belongs to no key and is read for keys outside the range. `value_of` maps the contents of a slot to a value, injectively; an
/// empty slot has the default contents. If the slots do not fit a core's cache, they are prefetched.
pub(super) fn look_up_slots<S: Copy + Default, T: Copy + Default + PartialEq>(
    slots: &[S],
    smallest: u64,
    value_of: impl Fn(S) -> T,
    lookups: Lookups<'_, u64>,
    values: &mut Vec<T>,
    rows: &mut Vec<u32>,
) {
    with_widest_vectors(LookUpSlots { slots, smallest, value_of, lookups, values, rows });
}

struct LookUpSlots<'a, S, T, F> {
    slots: &'a [S],
    smallest: u64,
    value_of: F,
    lookups: Lookups<'a, u64>,
    values: &'a mut Vec<T>,
    rows: &'a mut Vec<u32>,
}

impl<S: Copy + Default, T: Copy + Default + PartialEq, F: Fn(S) -> T> VectorLoop for LookUpSlots<'_, S, T, F> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Vectors) {
        let Self { slots, smallest, value_of, lookups, values, rows } = self;
        let Some((last, slots)) = slots.split_last() else { unreachable!("there is a slot for keys that have none") };
        let slot_of = |key: u64| slots.get(key.wrapping_sub(smallest) as usize).unwrap_or(last);
        let look_up = |key: u64| value_of(*slot_of(key));
        let none = value_of(S::default());
        if lookups.are_few {
            let mut matches = Matches::few(&lookups, values, rows);
            // Most keys without a match lie outside the range, which is checked without a read.
            let pass = |keys: &[u64]| {
                let passing = Passing::those(keys.iter().map(|key| key.wrapping_sub(smallest) < slots.len() as u64));
                passing.numbers().for_each(|number| prefetch(slot_of(keys[number])));
                passing
            };
            let mut next = pass(lookups.keys);
            for (keys, number) in lookups.keys.chunks(LOOKED_UP_TOGETHER).zip(1..) {
                // The prefetches of these keys complete while the next keys are checked.
                let rest = lookups.keys.get(number * LOOKED_UP_TOGETHER..).unwrap_or_default();
                let passing = std::mem::replace(&mut next, pass(rest));
                let found = passing.numbers().map(|number| (number, look_up(keys[number])));
                matches.keep_few(keys.len(), found.filter(|(_, value)| *value != none));
            }
            return matches.finish();
        }
        let mut matches = Matches::new(&lookups, values, rows);
        if size_of_val(slots) <= region_of_this_machine() {
            look_up_all(lookups.keys, &mut matches, none, |_, key| look_up(key));
        } else {
            let keys = lookups.keys;
            keys.iter().take(AHEAD).for_each(|key| prefetch(slot_of(*key)));
            look_up_all(keys, &mut matches, none, |number, key| {
                prefetch(slot_of(keys[(number + AHEAD).min(keys.len() - 1)]));
                look_up(key)
            });
        }
        matches.finish();
    }
}

/// Looks up all keys. `look_up` gets the number of a key and the key, and returns `none` for keys not found.
#[inline(always)]
pub(super) fn look_up_all<T: Copy + Default + PartialEq>(
    keys: &[u64],
    matches: &mut Matches<'_, T>,
    none: T,
    look_up: impl Fn(usize, u64) -> T,
) {
    for (first, keys) in (0..).step_by(BLOCK).zip(keys.chunks(BLOCK)) {
        let values = matches.block(keys.len());
        for (number, (key, value)) in keys.iter().zip(&mut *values).enumerate() {
            *value = look_up(first + number, *key);
        }
        // Separate from the reads, so that many values are compared at once.
        let is_one_missing = values.iter().fold(false, |is_missing, value| is_missing | (*value == none));
        let found = if is_one_missing { bits(keys.len(), |key| values[key] != none) } else { u64::MAX };
        matches.keep(keys.len(), &[found]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_stays_in_order_and_overwrites_what_was_there() {
        let keys: Vec<u64> = (0..1_000).collect();
        // Full blocks, partial blocks and empty ones; and a last block that is not full and has a key beyond the slots.
        let is_there = |key: u64| key < 150 || key.is_multiple_of(3) && key < 700 || key > 990 && key != 999;
        let slots: Vec<u64> = keys.iter().map(|key| if is_there(*key) { key * 2 + 1 } else { 0 }).collect();
        let matchable: NullBuffer = (0..2_000).map(|row| row % 11 != 0).collect();
        for (matchable, are_few) in [(None, false), (None, true), (Some(&matchable), false), (Some(&matchable), true)] {
            let lookups = Lookups { first: 500, keys: &keys, matchable, are_few, filter: None };
            let (mut values, mut rows) = (vec![7; 2_000], vec![7; 10]);
            look_up_slots(&slots, 0, |slot| slot + 1, lookups, &mut values, &mut rows);
            let expected: Vec<(u64, u32)> = (500u32..)
                .zip(&keys)
                .filter(|(row, key)| is_there(**key) && (matchable.is_none() || row % 11 != 0))
                .map(|(row, key)| (key * 2 + 2, row))
                .collect();
            assert_eq!(values.into_iter().zip(rows).collect::<Vec<_>>(), expected);
        }
    }
}
