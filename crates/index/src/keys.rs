//! Sorted keys.

use std::ops::Deref;

use overspill_machine::memory::{CacheLine, PageVec};
use overspill_machine::{Error, Result};

/// Keys in ascending order, in huge pages if they are many. A key may be there several times.
#[derive(Debug)]
pub struct SortedKeys {
    /// The last line is filled up with the largest number.
    lines: PageVec<CacheLine>,
    length: usize,
    is_unique: bool,
}

impl SortedKeys {
    /// Lets `write` write `length` keys in order. `O(length)`.
    ///
    /// # Errors
    /// If the system does not provide the memory, or the keys are not sorted.
    pub fn write(length: usize, write: impl FnOnce(&mut [u64])) -> Result<Self> {
        let mut lines = PageVec::<CacheLine>::zeroed(length.div_ceil(CacheLine::WORDS))?;
        let (words, rest) = CacheLine::words_mut(&mut lines).split_at_mut(length);
        write(words);
        rest.fill(u64::MAX);
        let mut is_unique = true;
        for (place, pair) in words.windows(2).enumerate() {
            if pair[0] > pair[1] {
                let place = place + 1;
                return Err(Error::Invalid(format!(
                    "the keys of an index are not sorted: key {place} is less than its predecessor"
                )));
            }
            is_unique &= pair[0] < pair[1];
        }
        Ok(Self { lines, length, is_unique })
    }

    /// Whether no key is there twice.
    pub fn is_unique(&self) -> bool {
        self.is_unique
    }

    /// The keys, filled up to whole lines with the largest number.
    pub fn padded(&self) -> &[u64] {
        CacheLine::words(&self.lines)
    }

    /// The keys in lines. The last line is filled up with the largest number, which no key is less than.
    pub(crate) fn lines(&self) -> &[CacheLine] {
        &self.lines
    }

    /// The place after the last key equal to the one at `place`, found by doubling steps. `O(log k)` for `k` equal keys.
    pub(crate) fn end_of(&self, place: usize) -> usize {
        let key = self[place];
        let mut step = 1;
        while self.get(place + step) == Some(&key) {
            step *= 2;
        }
        // The key is at the last place but one that was looked at, and not at the last.
        let first = place + step / 2;
        let end = (place + step).min(self.length);
        first + self[first..end].partition_point(|word| *word == key)
    }
}

impl Deref for SortedKeys {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        &CacheLine::words(&self.lines)[..self.length]
    }
}
