//! The slots of a table in CPU memory, as `hash_table/perfect.cuh` and `hash_table/linear_probing.cuh` lay them out, for the
//! CPU's side of a join that both processors work on.

use std::sync::atomic::{AtomicU64, Ordering};

use overspill_machine::memory::prefetch;

use super::no_partitioning::TableKind;
use crate::HashFunction;

/// Marks an empty slot: no value of a build tuple may be this.
const EMPTY: u64 = u64::MAX;

/// As in `linear_probing.cuh`: longer walks are those of keys with many duplicates.
const LONGEST_WALK: usize = 256;

/// Where the search for a key goes on; `None` if it is over.
pub type Place = Option<usize>;

/// How slots of keys of 8 bytes are laid out.
#[derive(Debug, Clone, Copy)]
pub(super) enum SlotLayout {
    /// A value for each key from the smallest on.
    Perfect { smallest_key: u64 },
    /// 2^bits pairs of key and value.
    LinearProbing { bits: u32, hash: HashFunction },
}

impl SlotLayout {
    /// `None` for tables whose slots only kernels know.
    pub fn new(kind: TableKind, bits: u32, hash: HashFunction) -> Option<Self> {
        match kind {
            TableKind::Perfect { smallest_key, .. } => Some(Self::Perfect { smallest_key }),
            TableKind::LinearProbing => Some(Self::LinearProbing { bits, hash }),
            TableKind::MultiValue => None,
        }
    }

    /// The word whose value says whether the first slot of a key is taken.
    fn first(self, key: u64, words: usize) -> Place {
        match self {
            Self::Perfect { smallest_key } => {
                let slot = usize::try_from(key.wrapping_sub(smallest_key)).ok()?;
                (slot < words).then_some(slot)
            }
            // Tables have two slots at least, so that a bit is there.
            Self::LinearProbing { bits, hash } => Some(2 * (hash.hash(key) >> (64 - bits)) as usize + 1),
        }
    }
}

/// A table that is read: both kinds of processors may do so at the same time.
#[derive(Debug, Clone, Copy)]
pub struct HostSlots<'a> {
    layout: SlotLayout,
    words: &'a [u64],
}

impl<'a> HostSlots<'a> {
    pub(super) fn new(layout: SlotLayout, words: &'a [u64]) -> Self {
        Self { layout, words }
    }

    /// Where the search for a key begins, which is asked for from memory now.
    #[inline]
    pub fn first(&self, key: u64) -> Place {
        let place = self.layout.first(key, self.words.len());
        if let Some(word) = place.and_then(|place| self.words.get(place)) {
            prefetch(word);
        }
        place
    }

    /// The next value of a key, and where the search goes on after it. `O(1)` expected; with duplicates that of the walk.
    #[inline]
    pub fn next(&self, key: u64, place: Place) -> Option<(u64, Place)> {
        let mut place = place?;
        match self.layout {
            SlotLayout::Perfect { .. } => {
                let value = *self.words.get(place)?;
                (value != EMPTY).then_some((value, None))
            }
            // At least half of the slots are empty.
            SlotLayout::LinearProbing { .. } => loop {
                let value = *self.words.get(place)?;
                if value == EMPTY {
                    return None;
                }
                let (found, next) = (self.words[place - 1] == key, (place + 2) % self.words.len());
                if found {
                    return Some((value, Some(next)));
                }
                place = next;
            },
        }
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
        let place = self.layout.first(key, self.words.len());
        if let Some(word) = place.and_then(|place| self.words.get(place)) {
            prefetch(word);
        }
        place
    }

    /// Puts a tuple in from that place on; false if the table cannot take it, as [`super::HashTable::build`] says.
    #[inline]
    pub fn insert(&self, key: u64, value: u64, place: Place) -> bool {
        // Nobody reads a slot before all have been filled, and whoever does has waited for those who fill them.
        let claim = |slot: &AtomicU64| slot.compare_exchange(EMPTY, value, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let Some(mut place) = place else { return false };
        match self.layout {
            SlotLayout::Perfect { .. } => self.words.get(place).is_some_and(claim),
            SlotLayout::LinearProbing { .. } => {
                let slots = self.words.len() / 2;
                for _ in 0..slots.min(LONGEST_WALK + 1) {
                    if claim(&self.words[place]) {
                        self.words[place - 1].store(key, Ordering::Relaxed);
                        return true;
                    }
                    place = (place + 2) % self.words.len();
                }
                false
            }
        }
    }
}
