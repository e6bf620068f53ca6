//! A hash table from keys of any length to their numbers.

use overspill_machine::memory::prefetch;

use super::row_keys::RowKeys;
use super::table::{BLOCK, slots_for};
use crate::error::Result;

/// Keys with their numbers. A slot is the upper half of its key's hash, and below it the number of the key plus one; an empty slot is 0.
/// A key whose slot is taken lies in the next free one. Keys occupy at most half of the slots.
#[derive(Debug, Default)]
pub(super) struct RowTable {
    slots: Vec<u64>,
    /// The keys in the order of their numbers.
    keys: RowKeys,
}

impl RowTable {
    /// A table of these keys, by their numbers.
    pub fn of(keys: RowKeys) -> Result<Self> {
        let mut table = Self { slots: Vec::new(), keys };
        let hashes: Vec<u64> = (0..table.keys.len()).map(|key| table.keys.hash(key)).collect();
        table.slots = vec![0; slots_for(hashes.len())?];
        for (number, hash) in hashes.into_iter().enumerate() {
            table.insert(slot_of(hash, number));
        }
        Ok(table)
    }

    pub fn keys(&self) -> &RowKeys {
        &self.keys
    }

    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u64>() + self.keys.memory()
    }

    /// Forgets all keys, and keeps the memory.
    pub fn clear(&mut self) {
        self.slots.fill(0);
        self.keys.clear();
    }

    /// Appends the number of each row.
    pub fn number(&mut self, rows: &RowKeys, numbers: &mut Vec<usize>) -> Result<()> {
        numbers.reserve(rows.len());
        let mut hashes = [0; BLOCK];
        for first in (0..rows.len()).step_by(BLOCK) {
            let block = first..rows.len().min(first + BLOCK);
            self.reserve(block.len())?;
            let shift = self.shift();
            for (hash, row) in hashes.iter_mut().zip(block.clone()) {
                *hash = rows.hash(row);
                prefetch(&self.slots[(*hash >> shift) as usize]);
            }
            for (row, hash) in block.zip(hashes) {
                // Rows of a group are often next to each other.
                let number = match numbers.last() {
                    Some(last) if row > first && rows.get(row) == rows.get(row - 1) => *last,
                    _ => self.number_of(rows.get(row), hash),
                };
                numbers.push(number);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn number_of(&mut self, key: &[u8], hash: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = (hash >> self.shift()) as usize;
        loop {
            let found = self.slots[slot];
            if found == 0 {
                break;
            }
            let number = (found as u32 - 1) as usize;
            if found >> 32 == hash >> 32 && self.keys.get(number) == key {
                return number;
            }
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = slot_of(hash, self.keys.len());
        self.keys.push(key);
        self.keys.len() - 1
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
        for slot in std::mem::replace(&mut self.slots, vec![0; slots]).into_iter().filter(|slot| *slot != 0) {
            self.insert(slot);
        }
        Ok(())
    }

    /// Inserts a slot whose key is in none. There are at most 2^32 slots for keys, so the upper half of a hash selects one.
    fn insert(&mut self, new: u64) {
        let mask = self.slots.len() - 1;
        let mut slot = (new >> self.shift()) as usize;
        while self.slots[slot] != 0 {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = new;
    }
}

/// The slot of a key, whose number `slots_for` has found small enough.
fn slot_of(hash: u64, number: usize) -> u64 {
    hash >> 32 << 32 | (number as u64 + 1)
}
