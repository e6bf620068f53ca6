//! Perfect hashing with payloads in the slots.

use std::sync::atomic::{AtomicBool, Ordering};

use super::perfect::KeyRange;
use super::regions::TableOrder;
use crate::error::Result;
use crate::memory::{PageVec, SharedNumber};
use crate::parallel::{in_parallel, ranges};

/// A table for unique keys of a range that is not much larger than there are keys: the key tells the slot, which holds the
/// payload. Making it costs a write at a random place for each row, and a lookup one read.
#[derive(Debug)]
pub(crate) struct PerfectPayloads {
    smallest: u64,
    payloads: Slots,
    /// A bit for each slot that has a key; `None` if all have one.
    taken: Option<PageVec<u64>>,
}

/// A payload for each key of the range.
#[derive(Debug)]
enum Slots {
    Narrow(PageVec<u32>),
    Wide(PageVec<u64>),
}

impl PerfectPayloads {
    /// A table of the rows for which `is_matchable` holds; `None` if a key has two of them. `is_narrow` says that payloads
    /// have 32 bits. `O(rows + range)`.
    pub fn build(
        keys: &[u64],
        payloads: &[u64],
        is_narrow: bool,
        range: KeyRange,
        is_matchable: impl Fn(usize) -> bool + Sync,
        threads: usize,
    ) -> Result<Option<Self>> {
        let slot_of = |row: usize| is_matchable(row).then(|| keys[row].wrapping_sub(range.smallest) as usize);
        let (taken, slots) = PageVec::<u64>::written(range.length.div_ceil(64), |taken| -> Result<_> {
            let is_new = |slot: usize| {
                let bit = 1 << (slot % 64);
                taken[slot / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0
            };
            if is_narrow {
                let narrow = |row: usize| payloads[row] as u32;
                Ok(write(range.length, keys.len(), threads, slot_of, narrow, is_new)?.map(Slots::Narrow))
            } else {
                Ok(write(range.length, keys.len(), threads, slot_of, |row| payloads[row], is_new)?.map(Slots::Wide))
            }
        })?;
        let is_full = range.count == range.length;
        Ok(slots?.map(|payloads| Self { smallest: range.smallest, payloads, taken: (!is_full).then_some(taken) }))
    }

    /// The bytes the table takes.
    pub fn bytes(&self) -> usize {
        let payloads = match &self.payloads {
            Slots::Narrow(payloads) => payloads.bytes(),
            Slots::Wide(payloads) => payloads.bytes(),
        };
        payloads + self.taken.as_ref().map_or(0, PageVec::bytes)
    }

    /// The range of keys that the table is for.
    pub fn range(&self) -> TableOrder {
        let range = match &self.payloads {
            Slots::Narrow(payloads) => payloads.len(),
            Slots::Wide(payloads) => payloads.len(),
        };
        TableOrder::Key { smallest: self.smallest, range: range as u64 }
    }

    /// Appends the payload of each of the keys that is there, and its number, counting from `first`.
    pub fn find_one(
        &self,
        first: usize,
        keys: &[u64],
        is_matchable: impl Fn(usize) -> bool,
        payloads: &mut Vec<u64>,
        probe: &mut Vec<u32>,
    ) {
        match &self.payloads {
            Slots::Narrow(slots) => {
                self.find_in(slots.len(), |slot| u64::from(slots[slot]), first, keys, is_matchable, payloads, probe);
            }
            Slots::Wide(slots) => {
                self.find_in(slots.len(), |slot| slots[slot], first, keys, is_matchable, payloads, probe)
            }
        }
    }

    /// Written first and counted then, so that no branch depends on what was found.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the slots in two shapes, and what every search has")]
    fn find_in(
        &self,
        slots: usize,
        payload_in: impl Fn(usize) -> u64,
        first: usize,
        keys: &[u64],
        is_matchable: impl Fn(usize) -> bool,
        payloads: &mut Vec<u64>,
        probe: &mut Vec<u32>,
    ) {
        let taken = self.taken.as_deref();
        let mut found = payloads.len();
        payloads.resize(found + keys.len(), 0);
        probe.resize(found + keys.len(), 0);
        for (row, key) in (first..).zip(keys) {
            let slot = key.wrapping_sub(self.smallest) as usize;
            // Keys beyond the range read the last slot, for nothing.
            let place = slot.min(slots - 1);
            payloads[found] = payload_in(place);
            probe[found] = row as u32;
            let is_there = taken.is_none_or(|taken| taken[place / 64] >> (place % 64) & 1 == 1);
            found += usize::from((place == slot) & is_there & is_matchable(row));
        }
        payloads.truncate(found);
        probe.truncate(found);
    }
}

/// Writes the payload of each row into its slot, on all threads at once; `None` if two rows have one slot.
fn write<T: SharedNumber>(
    slots: usize,
    rows: usize,
    threads: usize,
    slot_of: impl Fn(usize) -> Option<usize> + Sync,
    payload_of: impl Fn(usize) -> T + Sync,
    is_new: impl Fn(usize) -> bool + Sync,
) -> Result<Option<PageVec<T>>> {
    let is_unique = AtomicBool::new(true);
    let (written, ()) = PageVec::<T>::written(slots, |slots| {
        in_parallel(threads, ranges(rows, threads), |range| {
            for row in range {
                let Some(slot) = slot_of(row) else { continue };
                payload_of(row).store(&slots[slot]);
                if !is_new(slot) {
                    is_unique.store(false, Ordering::Relaxed);
                }
                if !is_unique.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
    })?;
    Ok(is_unique.into_inner().then_some(written))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn table(keys: &[u64], is_narrow: bool, is_matchable: impl Fn(usize) -> bool + Sync) -> Option<PerfectPayloads> {
        let payloads: Vec<u64> = (0..keys.len() as u64).map(|row| row * 3).collect();
        let range = KeyRange::of(keys, &is_matchable).unwrap();
        PerfectPayloads::build(keys, &payloads, is_narrow, range, is_matchable, 3).unwrap()
    }

    #[test]
    fn payloads_of_all_keys_that_can_match_are_found_and_no_others() {
        // From memory of the allocator and from the system's, with and without holes.
        for (count, factor) in [(1, 1), (1_000, 1), (1_000, 3), (5_000_000u64, 1)] {
            let keys: Vec<u64> = (0..count).map(|row| (row * 77_777 % count) * factor + 100).collect();
            for is_narrow in [false, true] {
                let table = table(&keys, is_narrow, |row| row % 5 != 1).unwrap();
                let there: HashMap<u64, u64> =
                    keys.iter().zip(0u64..).filter(|(_, row)| row % 5 != 1).map(|(key, row)| (*key, row * 3)).collect();
                let probe: Vec<u64> = (0..count * factor + 300).step_by(7).chain([0, u64::MAX, 99]).collect();
                let (mut payloads, mut rows) = (vec![], vec![]);
                table.find_one(5, &probe, |row| row != 6, &mut payloads, &mut rows);
                let found: Vec<_> = rows.into_iter().zip(payloads).collect();
                let expected: Vec<_> = (5u32..)
                    .zip(&probe)
                    .filter(|(row, _)| *row != 6)
                    .filter_map(|(row, key)| Some((row, *there.get(key)?)))
                    .collect();
                assert!(found == expected, "{count} keys, one in {factor}, narrow: {is_narrow}");
            }
        }
    }

    #[test]
    fn keys_with_two_rows_are_refused() {
        let mut keys: Vec<u64> = (0..100_000).collect();
        assert!(table(&keys, false, |_| true).is_some());
        keys[70_000] = 5;
        assert!(table(&keys, false, |_| true).is_none());
        assert!(table(&keys, true, |row| row != 5).is_some());
    }
}
