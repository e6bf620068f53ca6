//! The slots of a table in CPU memory, as `hash_table/perfect.cuh`, `linear_probing.cuh` and `multi_value.cuh` lay them out, for
//! the CPU's side of a join that both processors work on.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use overspill_machine::memory::prefetch;

use super::host_threads::prefix_sum;
use super::no_partitioning::TableKind;
use crate::HashFunction;

/// Marks an empty slot: no value of a build tuple may be this, nor the number of one.
const EMPTY: u64 = u64::MAX;

/// As in `linear_probing.cuh`: longer walks are those of keys with many duplicates.
const LONGEST_WALK: usize = 256;

/// Where the search for a key goes on; `None` if it is over.
pub type Place = Option<Position>;

/// A place in a table.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    at: usize,
    /// In a multi-value table the end of the key's values, once its slot has been found; 0 before.
    end: usize,
}

/// How slots of keys of 8 bytes are laid out.
#[derive(Debug, Clone, Copy)]
pub(super) enum SlotLayout {
    /// A value for each key from the smallest on.
    Perfect { smallest_key: u64 },
    /// 2^bits pairs of key and value.
    LinearProbing { bits: u32, hash: HashFunction },
    /// Of each of 2^bits slots the tuple that claimed it; keys and values lie elsewhere.
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

    /// The word that says whether the first slot of a key is taken, which is asked for from memory.
    #[inline]
    fn first<T>(self, key: u64, words: &[T]) -> Place {
        let at = match self {
            Self::Perfect { smallest_key } => usize::try_from(key.wrapping_sub(smallest_key)).ok()?,
            // Tables have two slots at least, so that a bit is there.
            Self::LinearProbing { bits, hash } => 2 * (hash.hash(key) >> (64 - bits)) as usize + 1,
            Self::MultiValue { bits, hash } => (hash.hash(key) >> (64 - bits)) as usize,
        };
        prefetch(words.get(at)?);
        Some(Position { at, end: 0 })
    }
}

/// What a multi-value table has beside the tuples that claimed its slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lists<'a> {
    /// The key of each slot that is claimed.
    pub keys: &'a [u64],
    /// Where its values start; one more than there are slots.
    pub starts: &'a [u64],
    pub values: &'a [u64],
}

/// A table that is read: both kinds of processors may do so at the same time.
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

    /// Where the search for a key begins, which is asked for from memory now.
    #[inline]
    pub fn first(&self, key: u64) -> Place {
        self.layout.first(key, self.words)
    }

    /// The next value of a key, and where the search goes on after it. `O(1)` expected; with duplicates that of the walk.
    #[inline]
    pub fn next(&self, key: u64, place: Place) -> Option<(u64, Place)> {
        let Position { mut at, end } = place?;
        match self.layout {
            SlotLayout::Perfect { .. } => {
                let value = *self.words.get(at)?;
                (value != EMPTY).then_some((value, None))
            }
            // At least half of the slots are empty.
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

    /// The values of a key that is searched for from a slot on.
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

/// A table that threads of the CPU fill, with the kernels of a device or without.
#[derive(Debug, Clone, Copy)]
pub struct SharedSlots<'a> {
    layout: SlotLayout,
    words: &'a [AtomicU64],
}

impl<'a> SharedSlots<'a> {
    pub(super) fn new(layout: SlotLayout, words: &'a [AtomicU64]) -> Self {
        Self { layout, words }
    }

    /// Where the search for a slot begins, which is asked for from memory now.
    #[inline]
    pub fn first(&self, key: u64) -> Place {
        self.layout.first(key, self.words)
    }

    /// Puts a tuple in from that place on; false if the table cannot take it, as [`super::HashTable::build`] says.
    #[inline]
    pub fn insert(&self, key: u64, value: u64, place: Place) -> bool {
        // Nobody reads a slot before all have been filled, and whoever does has waited for those who fill them.
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

/// A multi-value table that threads of the CPU fill: all tuples are counted, then [`SharedLists::place`] is called once, and
/// all tuples are filled in.
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
    /// Where the search for a slot begins, which is asked for from memory now.
    #[inline]
    pub fn first(&self, key: u64) -> Place {
        self.layout.first(key, self.claims)
    }

    /// Counts a tuple of a side that has these keys, the `row`-th, searching from a place on.
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
                // The key that stands in the slot may not be there yet; that of the tuple is.
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

    /// Gives the values of each slot a place, on so many threads, once all tuples have been counted. `O(slots)`.
    pub fn place(&self, threads: usize) {
        prefix_sum(self.starts, threads);
    }

    /// Fills a tuple in that was counted, searching from a place on.
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
