//! A hash table from keys to their numbers.

use arrow::buffer::NullBuffer;
use overspill_machine::memory::prefetch;

use crate::error::{JoinError, Result};
use crate::keys::Word;

/// Rows whose slots are prefetched together.
pub(super) const BLOCK: usize = 64;

/// The least number of slots.
const LEAST_SLOTS: usize = 1024;

/// Rows of equal keys that follow each other, on average, are looked up once.
const LEAST_RUN: usize = 3;

/// Keys with their numbers, in slots of linear probing of which at most half are occupied. A slot has the number of its key plus one; 0 is
/// an empty slot.
#[derive(Debug)]
pub(super) struct GroupTable<W: Word> {
    slots: Vec<W::Entry>,
    /// The keys in the order of their numbers.
    keys: Vec<W>,
    /// The number of the rows without a key: `keys` has any value there.
    null: Option<usize>,
}

impl<W: Word> GroupTable<W> {
    pub fn new() -> Self {
        Self { slots: Vec::new(), keys: Vec::new(), null: None }
    }

    /// A table of these keys, by their numbers. `null` is that of the rows without a key.
    pub fn of(keys: Vec<W>, null: Option<usize>) -> Result<Self> {
        let mut table = Self { slots: Vec::new(), keys, null };
        table.reserve(0)?;
        Ok(table)
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn keys(&self) -> &[W] {
        &self.keys
    }

    /// The number of the rows without a key.
    pub fn null(&self) -> Option<usize> {
        self.null
    }

    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<W::Entry>() + self.keys.capacity() * size_of::<W>()
    }

    /// Forgets all keys, and keeps the memory.
    pub fn clear(&mut self) {
        self.slots.fill(W::Entry::default());
        self.keys.clear();
        self.null = None;
    }

    /// Appends the number of each row. Rows that are null in `nulls` have no key.
    pub fn number(&mut self, words: &[W], nulls: Option<&NullBuffer>, numbers: &mut Vec<usize>) -> Result<()> {
        numbers.reserve(words.len());
        let mut hashes = [0; BLOCK];
        let mut are_in_runs = true;
        for (block, words) in words.chunks(BLOCK).enumerate() {
            self.reserve(words.len())?;
            let shift = self.shift();
            for (hash, word) in hashes.iter_mut().zip(words) {
                *hash = word.hash();
                prefetch(&self.slots[(*hash >> shift) as usize]);
            }
            match nulls {
                None if are_in_runs => are_in_runs = self.number_runs(words, &hashes, numbers),
                None => {
                    for (word, hash) in words.iter().zip(&hashes) {
                        numbers.push(self.number_of(*word, *hash));
                    }
                }
                Some(nulls) => {
                    for (row, (word, hash)) in words.iter().zip(&hashes).enumerate() {
                        let number = if nulls.is_null(block * BLOCK + row) {
                            self.null_number()
                        } else {
                            self.number_of(*word, *hash)
                        };
                        numbers.push(number);
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends the numbers of keys that are looked up once if they follow each other. Returns whether many do. Otherwise a processor would not foresee whether a key is
    /// that of the row before, and a look-up takes less than such a mistake.
    #[inline(always)]
    fn number_runs(&mut self, words: &[W], hashes: &[u64; BLOCK], numbers: &mut Vec<usize>) -> bool {
        let Some((first, hash)) = words.first().zip(hashes.first()) else { return true };
        let mut last = (*first, self.number_of(*first, *hash));
        let mut runs = 1;
        numbers.push(last.1);
        for (word, hash) in words.iter().zip(hashes).skip(1) {
            if *word != last.0 {
                last = (*word, self.number_of(*word, *hash));
                runs += 1;
            }
            numbers.push(last.1);
        }
        runs * LEAST_RUN <= words.len()
    }

    #[inline(always)]
    fn number_of(&mut self, word: W, hash: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = (hash >> self.shift()) as usize;
        loop {
            let entry = &self.slots[slot];
            match W::row_of(entry) {
                0 => break,
                number if W::of(entry) == word => return number as usize - 1,
                _ => slot = (slot + 1) & mask,
            }
        }
        self.keys.push(word);
        // `slots_for` has refused numbers of more than 32 bits.
        self.slots[slot] = word.entry(self.keys.len() as u32, hash as u32);
        self.keys.len() - 1
    }

    fn null_number(&mut self) -> usize {
        *self.null.get_or_insert_with(|| {
            self.keys.push(W::default());
            self.keys.len() - 1
        })
    }

    /// The bits of a hash below those that select a slot.
    #[inline(always)]
    fn shift(&self) -> u32 {
        u64::BITS - self.slots.len().trailing_zeros()
    }

    /// Makes room for more keys.
    fn reserve(&mut self, rows: usize) -> Result<()> {
        let keys = self.keys.len() + rows;
        if keys * 2 <= self.slots.len() {
            return Ok(());
        }
        let slots = slots_for(keys)?;
        self.slots = vec![W::Entry::default(); slots];
        let (mask, shift) = (slots - 1, self.shift());
        for (number, word) in self.keys.iter().enumerate().filter(|(number, _)| self.null != Some(*number)) {
            let hash = word.hash();
            let mut slot = (hash >> shift) as usize;
            while W::row_of(&self.slots[slot]) != 0 {
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = word.entry(number as u32 + 1, hash as u32);
        }
        Ok(())
    }
}

/// The number of slots for `keys`: a power of two, and at least twice as many.
///
/// # Errors
/// If the keys are so many that their numbers do not fit a slot.
pub(super) fn slots_for(keys: usize) -> Result<usize> {
    if keys >= u32::MAX as usize / 2 {
        let text =
            "A partition of an aggregate has more than 2^31 - 2 groups. Raise datafusion.execution.target_partitions.";
        return Err(JoinError::Limit(text.to_owned()));
    }
    Ok((keys * 2).next_power_of_two().max(LEAST_SLOTS))
}
