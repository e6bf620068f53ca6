//! Perfect hashing: a slot for each key of a range.

use std::sync::atomic::{AtomicBool, Ordering};

use overspill_machine::memory::{PageVec, SharedNumber};

use super::deal::{Dealt, Slots};
use super::key_set::KeySet;
use super::matches::{Lookups, Matches, look_up_all, look_up_slots};
use super::payload_rows::PayloadRows;
use super::regions::TableOrder;
use super::slots::put_rows;
use crate::error::Result;
use crate::parallel::{in_parallel, ranges};

/// Maximum slots per row.
const MAX_SPREAD: usize = 4;

/// Slots, or keys, that a thread counts at once.
const COUNTED_TOGETHER: usize = 1 << 18;

/// A table for keys in a dense range: the key determines the slot, and keys need not be compared (paper 2, section 7.1; the
/// NOPA join of Schuh, Chen and Dittrich, 2016).
#[derive(Debug)]
pub(super) enum PerfectTable {
    /// Every key has at most one row.
    Unique(PerfectRows),
    /// A key has several rows.
    Grouped(GroupedRows),
}

/// The row of each key.
#[derive(Debug)]
pub(super) struct PerfectRows {
    smallest: u64,
    rows: RowsByKey,
}

#[derive(Debug)]
enum RowsByKey {
    /// The keys of consecutive rows are consecutive: the slot is the row.
    InOrder(u32),
    /// The row of each key plus one, or 0 for none; then a slot without a row. It is full if every key of the range has a row,
    /// and there are no other rows.
    Slots { rows: PageVec<u32>, is_full: bool },
}

/// The rows of each key.
#[derive(Debug)]
pub(super) struct GroupedRows {
    smallest: u64,
    /// The start of each key's rows in `rows`, and the end of the last key's rows.
    starts: PageVec<u32>,
    rows: PageVec<u32>,
}

/// The range of the keys of rows that can match.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyRange {
    /// The smallest key.
    pub smallest: u64,
    /// Number of keys from the smallest to the largest.
    pub length: usize,
    /// Number of rows.
    pub count: usize,
}

impl KeyRange {
    /// The key range of the rows for which `is_matchable` holds; `None` if it is too large for perfect hashing.
    pub fn of(keys: &[u64], is_matchable: impl Fn(usize) -> bool + Sync, threads: usize) -> Option<Self> {
        let chunk = |number: usize| number * COUNTED_TOGETHER..keys.len().min((number + 1) * COUNTED_TOGETHER);
        Self::of_extents(keys.len().div_ceil(COUNTED_TOGETHER), keys.len(), threads, |number| {
            KeyExtent::of(chunk(number).filter(|row| is_matchable(*row)).map(|row| keys[row]))
        })
    }

    /// Like `of`, for `count` rows in chunks.
    pub fn of_chunks(rows: &impl PayloadRows, count: usize, threads: usize) -> Option<Self> {
        Self::of_extents(rows.chunks(), count, threads, |number| {
            let chunk = rows.keys(number);
            match chunk.matchable {
                None => KeyExtent::of(chunk.keys.iter().copied()),
                Some(_) => KeyExtent::of(chunk.rows().map(|(_, key)| key)),
            }
        })
    }

    /// The range of `rows` keys in chunks. Stops after the first chunk whose keys are too far apart for all rows.
    fn of_extents(
        chunks: usize,
        rows: usize,
        threads: usize,
        extent: impl Fn(usize) -> KeyExtent + Sync,
    ) -> Option<Self> {
        let is_wide = AtomicBool::new(false);
        let extents = in_parallel(threads, (0..chunks).collect(), |number| {
            if is_wide.load(Ordering::Relaxed) {
                return KeyExtent::EMPTY;
            }
            let extent = extent(number);
            is_wide.fetch_or(KeyExtent { count: rows, ..extent }.range().is_none(), Ordering::Relaxed);
            extent
        });
        let all = extents.into_iter().fold(KeyExtent::EMPTY, |all, one| KeyExtent {
            smallest: all.smallest.min(one.smallest),
            largest: all.largest.max(one.largest),
            count: all.count + one.count,
        });
        if is_wide.into_inner() { None } else { all.range() }
    }
}

/// The smallest and largest of some keys, and their number.
#[derive(Debug, Clone, Copy)]
struct KeyExtent {
    smallest: u64,
    largest: u64,
    count: usize,
}

impl KeyExtent {
    const EMPTY: Self = Self { smallest: u64::MAX, largest: 0, count: 0 };

    #[inline(always)]
    fn of(keys: impl Iterator<Item = u64>) -> Self {
        keys.fold(Self::EMPTY, |Self { smallest, largest, count }, key| Self {
            smallest: smallest.min(key),
            largest: largest.max(key),
            count: count + 1,
        })
    }

    fn range(self) -> Option<KeyRange> {
        let Self { smallest, largest, count } = self;
        if smallest > largest {
            return Some(KeyRange { smallest: 0, length: 0, count: 0 });
        }
        let length = usize::try_from(largest - smallest).ok()?.checked_add(1)?;
        (length / MAX_SPREAD <= count && length < u32::MAX as usize).then_some(KeyRange { smallest, length, count })
    }
}

impl PerfectTable {
    /// Maximum bytes per row.
    pub const BYTES_PER_ROW: usize = MAX_SPREAD * size_of::<u32>() + size_of::<u32>();

    /// Builds a table of the rows for which `is_matchable` holds; their keys have this range.
    pub fn build(
        keys: &[u64],
        KeyRange { smallest, length: range, count }: KeyRange,
        is_matchable: impl Fn(usize) -> bool + Sync,
        threads: usize,
    ) -> Result<Self> {
        let in_order = |smallest| Self::Unique(PerfectRows { smallest, rows: RowsByKey::InOrder(count as u32) });
        if count == 0 {
            return Ok(in_order(0));
        }
        let is_in_order = || keys.iter().enumerate().all(|(row, key)| key.wrapping_sub(smallest) == row as u64);
        if count == keys.len() && range == count && is_in_order() {
            return Ok(in_order(smallest));
        }
        let slot_of = |row: usize| keys[row].wrapping_sub(smallest) as usize;
        if let Some(rows) = unique(range, count, keys.len(), threads, |row| is_matchable(row).then(|| slot_of(row)))? {
            let is_full = range == count && count == keys.len();
            return Ok(Self::Unique(PerfectRows { smallest, rows: RowsByKey::Slots { rows, is_full } }));
        }
        // Items are the slot of a key, in the upper half, and the row.
        let dealt = Dealt::<1>::new(keys.len(), Slots::cut(range, count), threads, |row| {
            is_matchable(row).then(|| (slot_of(row), [(slot_of(row) as u64) << 32 | row as u64]))
        })?;
        let mut starts = PageVec::<u32>::zeroed(range + 1)?;
        let mut rows = PageVec::<u32>::zeroed(dealt.len())?;
        dealt.sort(0, &mut starts, &mut rows, |[item]| (item >> 32) as u32, |[item]| item as u32, |_| {});
        Ok(Self::Grouped(GroupedRows { smallest, starts, rows }))
    }
}

impl PerfectRows {
    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        match &self.rows {
            RowsByKey::InOrder(_) => 0,
            RowsByKey::Slots { rows, .. } => rows.bytes(),
        }
    }

    /// For each key of the range its row plus one, if each key has one row and the rows are in another order.
    pub fn order(&self) -> Option<&[u32]> {
        match &self.rows {
            RowsByKey::Slots { rows, is_full: true } => Some(&rows[..rows.len() - 1]),
            _ => None,
        }
    }

    /// Returns the table for rows that have been put in the order of their keys.
    pub fn in_order(self) -> Self {
        match self.order() {
            Some(order) => Self { smallest: self.smallest, rows: RowsByKey::InOrder(order.len() as u32) },
            None => self,
        }
    }

    /// The key range of the table.
    pub fn range(&self) -> TableOrder {
        let range = match &self.rows {
            RowsByKey::InOrder(count) => u64::from(*count),
            RowsByKey::Slots { rows, .. } => rows.len() as u64 - 1,
        };
        TableOrder::Key { smallest: self.smallest, range }
    }

    /// The keys.
    pub fn key_set(&self) -> Result<KeySet> {
        match &self.rows {
            RowsByKey::InOrder(count) => Ok(KeySet::Range { smallest: self.smallest, length: u64::from(*count) }),
            RowsByKey::Slots { rows, .. } => {
                KeySet::of_slots(self.smallest, rows[..rows.len() - 1].iter().map(|row| *row != 0))
            }
        }
    }

    /// Finds the build row of each key in the table, and the probe row of the key.
    pub fn find_one(&self, lookups: Lookups<'_, u64>, build: &mut Vec<u32>, probe: &mut Vec<u32>) {
        let smallest = self.smallest;
        match &self.rows {
            RowsByKey::InOrder(count) => {
                let mut matches = Matches::new(&lookups, build, probe);
                look_up_all(lookups.keys, &mut matches, *count, |_, key| {
                    key.wrapping_sub(smallest).min(u64::from(*count)) as u32
                });
                matches.finish();
            }
            RowsByKey::Slots { rows, .. } => {
                look_up_slots(rows, smallest, |row| row.wrapping_sub(1), lookups, build, probe);
            }
        }
    }
}

impl GroupedRows {
    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.starts.bytes() + self.rows.bytes()
    }

    /// The keys.
    pub fn key_set(&self) -> Result<KeySet> {
        KeySet::of_slots(self.smallest, self.starts.windows(2).map(|bounds| bounds[0] < bounds[1]))
    }

    /// Appends the range of matches of each key; [`GroupedRows::row`] returns the row at a place in it.
    pub fn find(&self, keys: &[u64], begins: &mut Vec<u32>, ends: &mut Vec<u32>) {
        let starts: &[u32] = &self.starts;
        for key in keys {
            let slot = key.wrapping_sub(self.smallest) as usize;
            let (begin, end) = match starts.get(slot..).and_then(|rest| rest.get(..2)) {
                Some([begin, end]) => (*begin, *end),
                _ => (0, 0),
            };
            begins.push(begin);
            ends.push(end);
        }
    }

    /// The row at a place from the range of a key.
    #[inline(always)]
    pub fn row(&self, place: u32) -> u32 {
        self.rows[place as usize]
    }
}

/// The row of each key plus one; `None` if a key has two rows.
///
/// All threads write to all slots, in any order. If a key has two rows either may stay, and fewer slots are occupied than there
/// are rows.
fn unique(
    range: usize,
    count: usize,
    rows: usize,
    threads: usize,
    slot_of: impl Fn(usize) -> Option<usize> + Sync,
) -> Result<Option<PageVec<u32>>> {
    if range < count {
        return Ok(None);
    }
    let (slots, ()) = PageVec::<u32>::written(range + 1, |slots| {
        in_parallel(threads, ranges(rows, threads), |range| {
            put_rows(slots, range, &slot_of, |row, slot| (row as u32 + 1).store(slot));
        });
    })?;
    Ok((taken(&slots, threads) == count).then_some(slots))
}

/// Number of slots that are not empty.
pub(super) fn taken<T: Copy + Default + PartialEq + Sync>(slots: &[T], threads: usize) -> usize {
    let counts = in_parallel(threads, slots.chunks(COUNTED_TOGETHER).collect(), |slots: &[T]| {
        // Counts in 32-bit words, so that many slots are counted at once.
        slots
            .chunks(1 << 10)
            .map(|slots| slots.iter().map(|slot| u32::from(*slot != T::default())).sum::<u32>() as usize)
            .sum::<usize>()
    });
    counts.into_iter().sum()
}
