//! Sorted keys.

use std::ops::Deref;

use overspill_machine::memory::PageVec;
use overspill_machine::{Error, Result};

/// Keys in ascending order, in huge pages if they are many. A key may be there several times.
#[derive(Debug)]
pub struct SortedKeys {
    words: PageVec<u64>,
    is_unique: bool,
}

impl SortedKeys {
    /// Takes keys that are sorted. `O(n)`.
    ///
    /// # Errors
    /// If they are not sorted.
    pub fn new(words: PageVec<u64>) -> Result<Self> {
        let mut is_unique = true;
        let mut before = None;
        for (place, word) in words.iter().enumerate() {
            if before > Some(*word) {
                return Err(Error::Invalid(format!(
                    "the keys of an index are not sorted: key {place} is smaller than its predecessor"
                )));
            }
            is_unique &= before != Some(*word);
            before = Some(*word);
        }
        Ok(Self { words, is_unique })
    }

    /// Whether no key is there twice.
    pub fn is_unique(&self) -> bool {
        self.is_unique
    }

    /// The place after the last key equal to the one at `place`, found by doubling steps. `O(log k)` for `k` equal keys.
    pub(crate) fn end_of(&self, place: usize) -> usize {
        let key = self.words[place];
        let mut step = 1;
        while self.words.get(place + step) == Some(&key) {
            step *= 2;
        }
        // The last equal key lies between the last place where one was and the first where none was.
        let first = place + step / 2;
        let end = (place + step).min(self.words.len());
        first + self.words[first..end].partition_point(|word| *word == key)
    }
}

impl Deref for SortedKeys {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.words
    }
}
