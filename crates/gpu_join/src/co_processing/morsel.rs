//! Probe rows that the CPU looks up while a GPU joins others.

use overspill_kernels::{HostSlots, Place};

use crate::device::words;
use overspill_join::hash_table::VisitedRows;
use overspill_join::keys::Keys;

/// Number of keys whose cache misses overlap.
const TOGETHER: usize = 64;

/// A batch of probe rows that the CPU looks up in the table that a GPU reads, or in a copy of it.
#[derive(Debug)]
pub(crate) struct Morsel {
    pub(crate) keys: Keys,
    /// The hashes of the keys, if the keys are not words themselves.
    hashes: Option<Vec<u64>>,
    /// The first row that is not finished.
    row: usize,
    /// The place where the search for that row's key continues, if it has started.
    resumed: Option<Place>,
}

impl Morsel {
    pub(crate) fn new(keys: Keys) -> Self {
        let hashes = match words(&keys) {
            std::borrow::Cow::Owned(hashes) => Some(hashes),
            std::borrow::Cow::Borrowed(_) => None,
        };
        Self { keys, hashes, row: 0, resumed: None }
    }

    /// Appends pairs to the vectors until they have `limit` pairs: values of build rows, and the matching probe rows. With
    /// `first_only`, appends at most one pair per probe row. Returns whether there may be more pairs. Rows that cannot match
    /// find nothing.
    pub(crate) fn next(
        &mut self,
        slots: HostSlots<'_>,
        limit: usize,
        first_only: bool,
        build: &mut Vec<u64>,
        probe: &mut Vec<u64>,
    ) -> bool {
        let words = match &self.hashes {
            Some(hashes) => hashes.into(),
            None => words(&self.keys),
        };
        let mut places: [Place; TOGETHER] = [None; TOGETHER];
        while self.row < words.len() {
            let rows = &words[self.row..words.len().min(self.row + TOGETHER)];
            for (place, key) in places.iter_mut().zip(rows) {
                *place = slots.first(*key);
            }
            if let Some(place) = self.resumed.take() {
                places[0] = place;
            }
            for ((row, key), place) in (self.row..).zip(rows).zip(&places) {
                if !self.keys.is_matchable(row) {
                    continue;
                }
                let mut place = *place;
                while let Some((value, next)) = slots.next(*key, place) {
                    if build.len() >= limit {
                        (self.row, self.resumed) = (row, Some(place));
                        return true;
                    }
                    build.push(value);
                    probe.push(row as u64);
                    place = if first_only { None } else { next };
                }
            }
            self.row += rows.len();
        }
        false
    }

    /// Marks every build row that matches. The table's words must be keys and its values must be row numbers.
    ///
    /// All rows of a key are marked together, on either processor and in any order: a thread that finds a marked row leaves the
    /// rest of the key's rows to the thread that marked it. So the cost is linear even if both sides consist of duplicates.
    pub(crate) fn mark(&self, slots: HostSlots<'_>, visited: &VisitedRows) {
        let words = words(&self.keys);
        let mut places: [Place; TOGETHER] = [None; TOGETHER];
        for (group, keys) in words.chunks(TOGETHER).enumerate() {
            for (place, key) in places.iter_mut().zip(keys) {
                *place = slots.first(*key);
            }
            for ((row, key), place) in (group * TOGETHER..).zip(keys).zip(&places) {
                let mut place = place.filter(|_| self.keys.is_matchable(row));
                while let Some((value, next)) = slots.next(*key, place) {
                    let build_row = value as u32;
                    if visited.get(build_row) {
                        break;
                    }
                    visited.set(build_row);
                    place = next;
                }
            }
        }
    }
}
