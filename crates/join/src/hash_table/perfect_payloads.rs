//! Perfect hashing with payloads stored in the slots.

use std::sync::atomic::{AtomicBool, Ordering};

use overspill_machine::memory::{PageVec, SharedNumber};

use super::key_set::KeySet;
use super::matches::{Lookups, look_up_slots};
use super::payload_rows::PayloadRows;
use super::perfect::{KeyRange, taken};
use super::regions::TableOrder;
use super::slots::put_rows;
use crate::error::Result;
use crate::parallel::in_parallel;

/// Payloads are stored XORed with this value, so that an empty slot is 0 and zeroed memory from the system need not be filled.
/// If a row has exactly this payload, [`PerfectPayloads::build`] rejects all rows.
const EMPTY: u64 = 0x6C8E_9CF5_7093_2BD5;

/// A table for unique keys in a dense range: the key determines the slot, which stores the payload. The build costs one random
/// write per row, and a lookup one read.
#[derive(Debug)]
pub(crate) struct PerfectPayloads {
    smallest: u64,
    slots: Slots,
}

/// A payload for each key of the range, and one empty slot.
#[derive(Debug)]
enum Slots {
    Narrow(PageVec<u32>, Narrowing),
    Wide(PageVec<u64>),
}

/// Stores payloads that differ by less than 32 bits in 32-bit slots, so that twice as many fit a cache. A slot stores the
/// distance from the smallest payload (frame of reference).
#[derive(Debug, Clone, Copy)]
struct Narrowing {
    base: u64,
    /// Serves as [`EMPTY`] for 32-bit slots.
    mark: u32,
}

impl Narrowing {
    /// Returns `None` if the payloads are too far apart. `O(rows)`; stops after the first chunk whose payloads are too far
    /// apart.
    fn of(rows: &impl PayloadRows, threads: usize) -> Option<Self> {
        if rows.is_narrow() {
            return Some(Self { base: 0, mark: EMPTY as u32 });
        }
        // The mark must not be one of the distances.
        let fits = |(least, most): (i64, i64)| least > most || most.abs_diff(least) < u64::from(u32::MAX);
        let none = (i64::MAX, i64::MIN);
        let is_wide = AtomicBool::new(false);
        let extents = in_parallel(threads, (0..rows.chunks()).collect(), |number: usize| {
            if is_wide.load(Ordering::Relaxed) {
                return none;
            }
            // Compares payloads as signed numbers, because most payloads on both sides of 0 are signed.
            let extent = rows
                .payloads(number)
                .iter()
                .fold(none, |(least, most), payload| (least.min(*payload as i64), most.max(*payload as i64)));
            is_wide.fetch_or(!fits(extent), Ordering::Relaxed);
            extent
        });
        let (least, most) = extents.into_iter().fold(none, |all, one| (all.0.min(one.0), all.1.max(one.1)));
        let is_narrow = !is_wide.into_inner() && fits((least, most)) && least <= most;
        is_narrow.then_some(Self { base: least as u64, mark: u32::MAX })
    }

    #[inline(always)]
    fn slot(self, payload: u64) -> u32 {
        payload.wrapping_sub(self.base) as u32 ^ self.mark
    }

    #[inline(always)]
    fn payload(self, slot: u32) -> u64 {
        self.base.wrapping_add(u64::from(slot ^ self.mark))
    }
}

impl PerfectPayloads {
    /// Builds a table of rows with keys in `range`, on `threads` threads. Returns `None` if a key has two rows, or if a payload
    /// equals the mark of empty slots. `O(rows + range)`.
    pub fn build(rows: &impl PayloadRows, range: KeyRange, threads: usize) -> Result<Option<Self>> {
        let slots = match Narrowing::of(rows, threads) {
            Some(narrowing) => write(rows, range, threads, |payload| narrowing.slot(payload))?
                .map(|slots| Slots::Narrow(slots, narrowing)),
            None => write(rows, range, threads, |payload| payload ^ EMPTY)?.map(Slots::Wide),
        };
        Ok(slots.map(|slots| Self { smallest: range.smallest, slots }))
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        match &self.slots {
            Slots::Narrow(slots, _) => slots.bytes(),
            Slots::Wide(slots) => slots.bytes(),
        }
    }

    /// The key range of the table.
    pub fn range(&self) -> TableOrder {
        let range = match &self.slots {
            Slots::Narrow(slots, _) => slots.len(),
            Slots::Wide(slots) => slots.len(),
        };
        TableOrder::Key { smallest: self.smallest, range: range as u64 - 1 }
    }

    /// The keys.
    pub fn key_set(&self) -> Result<KeySet> {
        match &self.slots {
            Slots::Narrow(slots, _) => KeySet::of_slots(self.smallest, taken_of(slots)),
            Slots::Wide(slots) => KeySet::of_slots(self.smallest, taken_of(slots)),
        }
    }

    /// Finds the payload of each key in the table, and the row of the key.
    pub fn find_one(&self, lookups: Lookups<'_, u64>, payloads: &mut Vec<u64>, rows: &mut Vec<u32>) {
        let smallest = self.smallest;
        match &self.slots {
            Slots::Narrow(slots, narrowing) => {
                look_up_slots(slots, smallest, |slot| narrowing.payload(slot), lookups, payloads, rows);
            }
            Slots::Wide(slots) => look_up_slots(slots, smallest, |slot| slot ^ EMPTY, lookups, payloads, rows),
        }
    }
}

/// Whether each slot but the last, which never is, has a payload.
fn taken_of<T: Copy + Default + PartialEq>(slots: &[T]) -> impl ExactSizeIterator<Item = bool> {
    slots[..slots.len() - 1].iter().map(|slot| *slot != T::default())
}

/// Writes the slot of each row, on all threads. Returns `None` if fewer slots are occupied than there are rows.
///
/// Uses only plain stores: an atomic operation that also reads would wait for the cache miss of the previous store.
fn write<T: SharedNumber + PartialEq + Sync>(
    rows: &impl PayloadRows,
    range: KeyRange,
    threads: usize,
    content_of: impl Fn(u64) -> T + Sync,
) -> Result<Option<PageVec<T>>> {
    let (slots, _) = PageVec::<T>::written(range.length + 1, |slots| {
        in_parallel(threads, (0..rows.chunks()).collect(), |number| {
            let (chunk, payloads) = (rows.keys(number), rows.payloads(number));
            let slot_of = |row: usize| Some(chunk.key(row)?.wrapping_sub(range.smallest) as usize);
            put_rows(slots, 0..chunk.keys.len(), slot_of, |row, slot| content_of(payloads[row]).store(slot));
        })
    })?;
    Ok((taken(&slots, threads) == range.count).then_some(slots))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::buffer::NullBuffer;

    use super::super::payload_rows::tests::Chunks;
    use super::*;

    /// A table in which the payload of each key is `payload` of its row.
    fn table(
        keys: &[u64],
        payload: impl Fn(u64) -> u64,
        is_narrow: bool,
        is_matchable: impl Fn(usize) -> bool + Sync,
    ) -> Option<PerfectPayloads> {
        let payloads: Vec<u64> = (0..keys.len() as u64).map(payload).collect();
        let rows = Chunks::of(keys, &payloads, is_narrow, is_matchable);
        PerfectPayloads::build(&rows, KeyRange::of_chunks(&rows, keys.len(), 3).unwrap(), 3).unwrap()
    }

    #[test]
    fn payloads_of_all_keys_that_can_match_are_found_and_no_others() {
        // With memory from the allocator and from the system, and with and without gaps in the range.
        for (count, factor) in [(1, 1), (1_000, 1), (1_000, 3), (5_000_000u64, 1)] {
            let keys: Vec<u64> = (0..count).map(|row| (row * 77_777 % count) * factor + 100).collect();
            // Payloads of 32 bits by their type, by their values (on both sides of 0), and not at all.
            let payload: [fn(u64) -> u64; 3] =
                [|row| row * 3, |row| row.wrapping_mul(3).wrapping_sub(100), |row| row << 40 | row];
            for (kind, payload) in payload.into_iter().enumerate() {
                let table = table(&keys, payload, kind == 0, |row| row % 5 != 1).unwrap();
                assert_eq!(matches!(table.slots, Slots::Narrow(..)), kind < 2 || count == 1);
                let there: HashMap<u64, u64> = keys
                    .iter()
                    .zip(0u64..)
                    .filter(|(_, row)| row % 5 != 1)
                    .map(|(key, row)| (*key, payload(row)))
                    .collect();
                let probe: Vec<u64> = (0..count * factor + 300).step_by(7).chain([0, u64::MAX, 99]).collect();
                let (mut payloads, mut rows) = (vec![], vec![]);
                let matchable: NullBuffer = (0..probe.len() + 5).map(|row| row != 6).collect();
                let lookups =
                    Lookups { first: 5, keys: &probe, matchable: Some(&matchable), are_few: false, filter: None };
                table.find_one(lookups, &mut payloads, &mut rows);
                let found: Vec<_> = rows.into_iter().zip(payloads).collect();
                let expected: Vec<_> = (5u32..)
                    .zip(&probe)
                    .filter(|(row, _)| *row != 6)
                    .filter_map(|(row, key)| Some((row, *there.get(key)?)))
                    .collect();
                assert!(found == expected, "{count} keys, one in {factor}, payloads of kind {kind}");
            }
        }
    }

    #[test]
    fn payloads_have_32_bits_if_they_lie_close_enough() {
        let range = KeyRange { smallest: 7, length: 3, count: 3 };
        for (base, distance, is_narrow) in [
            (0, u64::from(u32::MAX) - 1, true),
            (0, u64::from(u32::MAX), false),
            (-5i64 as u64, 7, true),
            (i64::MAX as u64 - 7, 7, true),
            (i64::MAX as u64, 7, false),
            (i64::MIN as u64, 7, true),
        ] {
            let payloads = [base, base.wrapping_add(distance), base.wrapping_add(1)];
            let rows = Chunks::of(&[8, 9, 7], &payloads, false, |_| true);
            let table = PerfectPayloads::build(&rows, range, 2).unwrap().unwrap();
            assert_eq!(matches!(table.slots, Slots::Narrow(..)), is_narrow, "{base:x} and {distance:x}");
            let (mut found, mut places) = (vec![], vec![]);
            let lookups = Lookups { first: 0, keys: &[8, 9, 7, 6, 10], matchable: None, are_few: false, filter: None };
            table.find_one(lookups, &mut found, &mut places);
            assert_eq!((&found[..], &places[..]), (&payloads[..], &[0, 1, 2][..]), "{base:x} and {distance:x}");
        }
        // Chunks that are narrow each, but not together.
        let keys: Vec<u64> = (0..20_000).collect();
        for (shift, is_narrow) in [(31, true), (32, false)] {
            let table = table(&keys, |row| (row / 10_000) << shift | row, false, |_| true).unwrap();
            assert_eq!(matches!(table.slots, Slots::Narrow(..)), is_narrow, "{shift} bits");
        }
    }

    #[test]
    fn the_payload_that_marks_empty_slots_is_refused() {
        let range = KeyRange { smallest: 7, length: 3, count: 3 };
        for (payload, is_narrow, expected) in [
            (EMPTY, false, false),
            (EMPTY + 1, false, true),
            (EMPTY & 0xFFFF_FFFF, true, false),
            (EMPTY & 0xFFFF_FFFF, false, true),
        ] {
            let rows = Chunks::of(&[8, 9, 7], &[1, payload, 0], is_narrow, |_| true);
            let table = PerfectPayloads::build(&rows, range, 1).unwrap();
            assert_eq!(table.is_some(), expected, "{payload:x}, narrow: {is_narrow}");
        }
    }

    #[test]
    fn keys_with_two_rows_are_refused() {
        let mut keys: Vec<u64> = (0..100_000).collect();
        for payload in [|row| row, |row| row << 40] as [fn(u64) -> u64; 2] {
            keys[70_000] = 70_000;
            assert!(table(&keys, payload, false, |_| true).is_some());
            keys[70_000] = 5;
            assert!(table(&keys, payload, false, |_| true).is_none());
        }
        assert!(table(&keys, |row| row, true, |row| row != 5).is_some());
    }
}
