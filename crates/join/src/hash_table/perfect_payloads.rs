//! Perfect hashing with payloads in the slots.

use super::matches::{Lookups, look_up_slots};
use super::payload_rows::{PayloadRows, with_chunks};
use super::perfect::{KeyRange, taken};
use super::regions::TableOrder;
use super::slots::put_rows;
use crate::error::Result;
use crate::memory::{PageVec, SharedNumber};

/// What payloads are combined with in their slots, by exclusive or, so that an empty slot is 0 and memory from the system need
/// not be filled. A row that has just this payload makes [`PerfectPayloads::build`] refuse them all.
const EMPTY: u64 = 0x6C8E_9CF5_7093_2BD5;

/// A table for unique keys of a range that is not much larger than there are keys: the key tells the slot, which holds the
/// payload. Making it costs a write at a random place for each row, and a lookup one read.
#[derive(Debug)]
pub(crate) struct PerfectPayloads {
    smallest: u64,
    slots: Slots,
}

/// A payload for each key of the range, and an empty slot.
#[derive(Debug)]
enum Slots {
    Narrow(PageVec<u32>),
    Wide(PageVec<u64>),
}

impl PerfectPayloads {
    /// A table of rows whose keys have this range, on so many threads; `None` if a key has two of them, or a row the one
    /// payload that cannot be told from none. `O(rows + range)`.
    pub fn build(rows: &impl PayloadRows, range: KeyRange, threads: usize) -> Result<Option<Self>> {
        let slots = if rows.is_narrow() {
            write(rows, range, threads, |payload| (payload ^ EMPTY) as u32)?.map(Slots::Narrow)
        } else {
            write(rows, range, threads, |payload| payload ^ EMPTY)?.map(Slots::Wide)
        };
        Ok(slots.map(|slots| Self { smallest: range.smallest, slots }))
    }

    /// The bytes the table takes.
    pub fn bytes(&self) -> usize {
        match &self.slots {
            Slots::Narrow(slots) => slots.bytes(),
            Slots::Wide(slots) => slots.bytes(),
        }
    }

    /// The range of keys that the table is for.
    pub fn range(&self) -> TableOrder {
        let range = match &self.slots {
            Slots::Narrow(slots) => slots.len(),
            Slots::Wide(slots) => slots.len(),
        };
        TableOrder::Key { smallest: self.smallest, range: range as u64 - 1 }
    }

    /// Finds the payload of each of the keys that is there, and its row.
    pub fn find_one(&self, lookups: Lookups<'_, u64>, payloads: &mut Vec<u64>, rows: &mut Vec<u32>) {
        let smallest = self.smallest;
        match &self.slots {
            Slots::Narrow(slots) => {
                look_up_slots(slots, smallest, |slot| u64::from(slot ^ EMPTY as u32), lookups, payloads, rows);
            }
            Slots::Wide(slots) => look_up_slots(slots, smallest, |slot| slot ^ EMPTY, lookups, payloads, rows),
        }
    }
}

/// Writes what goes into the slot of each row, on all threads at once; `None` if fewer slots are taken than there are rows.
///
/// Plain stores alone: an atomic operation that reads as well would wait for the cache miss of the store before it.
fn write<T: SharedNumber + PartialEq + Sync>(
    rows: &impl PayloadRows,
    range: KeyRange,
    threads: usize,
    content_of: impl Fn(u64) -> T + Sync,
) -> Result<Option<PageVec<T>>> {
    let (slots, written) = PageVec::<T>::written(range.length + 1, |slots| {
        with_chunks(rows, threads, |number, chunk| {
            let payloads = rows.payloads(number);
            let slot_of = |row: usize| Some(chunk.key(row)?.wrapping_sub(range.smallest) as usize);
            put_rows(slots, 0..chunk.keys.len(), slot_of, |row, slot| content_of(payloads[row]).store(slot));
        })
    })?;
    written?;
    Ok((taken(&slots, threads) == range.count).then_some(slots))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow::buffer::NullBuffer;

    use super::super::payload_rows::tests::Chunks;
    use super::*;

    fn table(keys: &[u64], is_narrow: bool, is_matchable: impl Fn(usize) -> bool + Sync) -> Option<PerfectPayloads> {
        let payloads: Vec<u64> = (0..keys.len() as u64).map(|row| row * 3).collect();
        let rows = Chunks::of(keys, &payloads, is_narrow, is_matchable);
        PerfectPayloads::build(&rows, KeyRange::of_chunks(&rows, 3).unwrap().unwrap(), 3).unwrap()
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
                let matchable: NullBuffer = (0..probe.len() + 5).map(|row| row != 6).collect();
                let lookups =
                    Lookups { first: 5, keys: &probe, matchable: Some(&matchable), is_cached: false, filter: None };
                table.find_one(lookups, &mut payloads, &mut rows);
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
        assert!(table(&keys, false, |_| true).is_some());
        keys[70_000] = 5;
        assert!(table(&keys, false, |_| true).is_none());
        assert!(table(&keys, true, |row| row != 5).is_some());
    }
}
