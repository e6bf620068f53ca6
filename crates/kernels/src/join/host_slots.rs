//! The slots of a table in CPU memory, with the layout of `hash_table/perfect.cuh`, `linear_probing.cuh` and
//! `multi_value.cuh`, for the CPU's part of a join that both processors work on.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use overspill_machine::memory::prefetch;

use super::host_threads::prefix_sum;
use super::table_kind::TableKind;
use crate::HashFunction;

/// Marks an empty slot. No build tuple may have this value or this row number.
const EMPTY: u64 = u64::MAX;

/// Equals the limit in `linear_probing.cuh`. Only keys with many duplicates have longer walks.
const LONGEST_WALK: usize = 256;

/// The position at which the search for a key continues, or `None` if the search has ended.
pub type Place = Option<Position>;

/// A position in a table.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    at: usize,
    /// In a multi-value table, the end of the key's values once its slot has been found; 0 before.
    end: usize,
}

/// The layout of slots with 8-byte keys.
#[derive(Debug, Clone, Copy)]
pub(super) enum SlotLayout {
    /// A value for each key, starting with the smallest.
    Perfect { smallest_key: u64 },
    /// 2^bits pairs of key and value.
    LinearProbing { bits: u32, hash: HashFunction },
    /// 2^bits slots, each with the tuple that claimed it; keys and values are stored elsewhere.
    MultiValue { bits: u32, hash: HashFunction },
}

impl SlotLayout {
    pub fn new(kind: TableKind, bits: u32, hash: HashFunction) -> Self {
        match kind {
            TableKind::Perfect { smallest_key, .. } => Self::Perfect { smallest_key },
            TableKind::LinearProbing => Self::LinearProbing { bits, hash },
            TableKind::MultiValue => Self::MultiValue { bits, hash },
        }
    }

    /// Prefetches the word that says whether the key's first slot is taken, and returns its position.
    #[inline]
    fn first<T>(self, key: u64, words: &[T]) -> Place {
        let at = match self {
            Self::Perfect { smallest_key } => usize::try_from(key.wrapping_sub(smallest_key)).ok()?,
            // Tables have at least two slots, so `bits` is at least 1.
            Self::LinearProbing { bits, hash } => 2 * (hash.hash(key) >> (64 - bits)) as usize + 1,
            Self::MultiValue { bits, hash } => (hash.hash(key) >> (64 - bits)) as usize,
        };
        prefetch(words.get(at)?);
        Some(Position { at, end: 0 })
    }
}

/// The arrays of a multi-value table other than the claims.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lists<'a> {
    /// The key of each claimed slot.
    pub keys: &'a [u64],
    /// The start of each slot's values; one entry more than there are slots.
    pub starts: &'a [u64],
    pub values: &'a [u64],
}

/// A read-only view of a table. The CPU and the GPU may read it at the same time.
#[derive(Debug, Clone, Copy)]
pub struct HostSlots<'a> {
    layout: SlotLayout,
    words: &'a [u64],
    lists: Lists<'a>,
}

impl<'a> HostSlots<'a> {
    pub(super) fn new(layout: SlotLayout, words: &'a [u64], lists: Lists<'a>) -> Self {
        Self { layout, words, lists }
    }

    /// The position at which the search for a key begins. Prefetches it.
    #[inline]
    pub fn first(&self, key: u64) -> Place {
        self.layout.first(key, self.words)
    }

    /// Returns the next value of a key and the position at which the search continues. `O(1)` expected; with duplicates the
    /// length of the walk.
    #[inline]
    pub fn next(&self, key: u64, place: Place) -> Option<(u64, Place)> {
        let Position { mut at, end } = place?;
        match self.layout {
            SlotLayout::Perfect { .. } => {
                let value = *self.words.get(at)?;
                (value != EMPTY).then_some((value, None))
            }
            // The loop ends, as at least half of the slots are empty.
            SlotLayout::LinearProbing { .. } => loop {
                let value = *self.words.get(at)?;
                if value == EMPTY {
                    return None;
                }
                let (found, next) = (self.words[at - 1] == key, (at + 2) % self.words.len());
                if found {
                    return Some((value, Some(Position { at: next, end: 0 })));
                }
                at = next;
            },
            SlotLayout::MultiValue { .. } => {
                let Position { at, end } = if end > 0 { Position { at, end } } else { self.list(key, at)? };
                let next = (at + 1 < end).then_some(Position { at: at + 1, end });
                Some((*self.lists.values.get(at)?, next))
            }
        }
    }

    /// The range of a key's values, searching from slot `slot`.
    fn list(&self, key: u64, mut slot: usize) -> Option<Position> {
        let Lists { keys, starts, .. } = self.lists;
        while *self.words.get(slot)? != EMPTY {
            if keys[slot] == key {
                return Some(Position { at: starts[slot] as usize, end: starts[slot + 1] as usize });
            }
            slot = (slot + 1) % self.words.len();
        }
        None
    }
}

/// A table that CPU threads fill, alone or together with the kernels of a device.
#[derive(Debug, Clone, Copy)]
pub struct SharedSlots<'a> {
    layout: SlotLayout,
    words: &'a [AtomicU64],
}

impl<'a> SharedSlots<'a> {
    pub(super) fn new(layout: SlotLayout, words: &'a [AtomicU64]) -> Self {
        Self { layout, words }
    }

    /// The position at which the search for a slot begins. Prefetches it.
    #[inline]
    pub fn first(&self, key: u64) -> Place {
        self.layout.first(key, self.words)
    }

    /// Inserts a tuple, searching from `place`. Returns false if the table cannot take it (see [`super::HashTable::build`]).
    #[inline]
    pub fn insert(&self, key: u64, value: u64, place: Place) -> bool {
        // Relaxed ordering suffices: slots are read only after the reader has waited for all threads that fill them.
        let claim =
            |slot: &AtomicU64| slot.compare_exchange(EMPTY, value, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let Some(Position { mut at, .. }) = place else { return false };
        match self.layout {
            SlotLayout::Perfect { .. } => self.words.get(at).is_some_and(claim),
            SlotLayout::LinearProbing { .. } => {
                let slots = self.words.len() / 2;
                for _ in 0..slots.min(LONGEST_WALK + 1) {
                    if claim(&self.words[at]) {
                        self.words[at - 1].store(key, Ordering::Relaxed);
                        return true;
                    }
                    at = (at + 2) % self.words.len();
                }
                false
            }
            SlotLayout::MultiValue { .. } => false,
        }
    }
}

/// A multi-value table that CPU threads fill in three steps: count all tuples, call [`SharedLists::place`] once, and fill in
/// all tuples.
#[derive(Debug, Clone, Copy)]
pub struct SharedLists<'a> {
    pub(super) layout: SlotLayout,
    pub(super) claims: &'a [AtomicU64],
    pub(super) keys: &'a [AtomicU64],
    pub(super) starts: &'a [AtomicU64],
    pub(super) filled: &'a [AtomicU32],
    pub(super) values: &'a [AtomicU64],
}

impl SharedLists<'_> {
    /// The position at which the search for a slot begins. Prefetches it.
    #[inline]
    pub fn first(&self, key: u64) -> Place {
        self.layout.first(key, self.claims)
    }

    /// Counts the tuple at index `row` of `keys`, searching from `place`.
    ///
    /// # Panics
    /// If there are more tuples than the table was made for.
    #[inline]
    pub fn count(&self, keys: &[u64], row: usize, place: Place) {
        let key = keys[row];
        let Some(Position { at: mut slot, .. }) = place else { return };
        for _ in 0..self.claims.len() {
            let claimed = self.claims[slot].compare_exchange(EMPTY, row as u64, Ordering::Relaxed, Ordering::Relaxed);
            match claimed {
                Ok(_) => self.keys[slot].store(key, Ordering::Relaxed),
                // The claiming thread may not have stored the slot's key yet, so compare with the claiming tuple's key in
                // `keys`.
                Err(other) if keys[other as usize] != key => {
                    slot = (slot + 1) % self.claims.len();
                    continue;
                }
                Err(_) => {}
            }
            self.starts[slot].fetch_add(1, Ordering::Relaxed);
            return;
        }
        panic!("a hash table has more slots than tuples");
    }

    /// Computes where each slot's values start, on `threads` threads. Call it after all tuples have been counted. `O(slots)`.
    pub fn place(&self, threads: usize) {
        prefix_sum(self.starts, threads);
    }

    /// Stores the value of a counted tuple, searching from `place`.
    #[inline]
    pub fn fill(&self, key: u64, value: u64, place: Place) {
        let Some(Position { at: mut slot, .. }) = place else { return };
        while self.keys[slot].load(Ordering::Relaxed) != key || self.claims[slot].load(Ordering::Relaxed) == EMPTY {
            slot = (slot + 1) % self.claims.len();
        }
        let number = self.filled[slot].fetch_add(1, Ordering::Relaxed);
        let start = self.starts[slot].load(Ordering::Relaxed);
        self.values[(start + u64::from(number)) as usize].store(value, Ordering::Relaxed);
    }
}
