//! Perfect hashing: a slot for each key of a range.

use super::deal::{Dealt, Slots};
use super::matches::{Lookups, Matches, look_up_all, look_up_slots};
use super::payload_rows::{PayloadRows, with_chunks};
use super::regions::TableOrder;
use super::slots::put_rows;
use crate::error::Result;
use crate::memory::{PageVec, SharedNumber};
use crate::parallel::{in_parallel, ranges};

/// Maximum slots per row.
const MAX_SPREAD: usize = 4;

/// Slots that a thread counts at once.
const COUNTED_TOGETHER: usize = 1 << 18;

/// A table for keys in a dense range: the key determines the slot, and keys need not be compared (paper 2, section 7.1; the
/// NOPA join of Schuh, Chen and Dittrich, 2016).
#[derive(Debug)]
pub(crate) struct PerfectTable {
    smallest: u64,
    rows: RowsByKey,
}

#[derive(Debug)]
enum RowsByKey {
    /// The keys of consecutive rows are consecutive: the slot is the row.
    InOrder(u32),
    /// The row of each key plus one, or 0 for none; then a slot without a row. It is full if every key of the range has a row,
    /// and there are no other rows.
    Unique { rows: PageVec<u32>, is_full: bool },
    /// The start of each key's rows in `rows`, and the end of the last key's rows.
    Grouped { starts: PageVec<u32>, rows: PageVec<u32> },
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
        let extents = in_parallel(threads, ranges(keys.len(), threads), |range| {
            KeyExtent::of(range.filter(|row| is_matchable(*row)).map(|row| keys[row]))
        });
        KeyExtent::of_all(extents).range()
    }

    /// Like `of`, for rows in chunks.
    pub fn of_chunks(rows: &impl PayloadRows, threads: usize) -> Result<Option<Self>> {
        let extents = with_chunks(rows, threads, |_, chunk| KeyExtent::of(chunk.rows().map(|(_, key)| key)))?;
        Ok(KeyExtent::of_all(extents).range())
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

    fn of_all(extents: Vec<Self>) -> Self {
        extents.into_iter().fold(Self::EMPTY, |all, one| Self {
            smallest: all.smallest.min(one.smallest),
            largest: all.largest.max(one.largest),
            count: all.count + one.count,
        })
    }

    fn range(self) -> Option<KeyRange> {
        let Self { smallest, largest, count } = self;
        if count == 0 {
            return Some(KeyRange { smallest: 0, length: 0, count });
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
        if count == 0 {
            return Ok(Self { smallest: 0, rows: RowsByKey::InOrder(0) });
        }
        let is_in_order = || keys.iter().enumerate().all(|(row, key)| key.wrapping_sub(smallest) == row as u64);
        if count == keys.len() && range == count && is_in_order() {
            return Ok(Self { smallest, rows: RowsByKey::InOrder(count as u32) });
        }
        let slot_of = |row: usize| keys[row].wrapping_sub(smallest) as usize;
        let rows = match unique(range, count, keys.len(), threads, |row| is_matchable(row).then(|| slot_of(row)))? {
            Some(rows) => RowsByKey::Unique { rows, is_full: range == count && count == keys.len() },
            None => {
                let slots = Slots::cut(range, count);
                let dealt = Dealt::new(keys.len(), slots, threads, |row| {
                    is_matchable(row).then(|| (slot_of(row), [slot_of(row) as u32, row as u32]))
                });
                grouped(&dealt, slots)?
            }
        };
        Ok(Self { smallest, rows })
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        match &self.rows {
            RowsByKey::InOrder(_) => 0,
            RowsByKey::Unique { rows, .. } => rows.bytes(),
            RowsByKey::Grouped { starts, rows } => starts.bytes() + rows.bytes(),
        }
    }

    /// For each key of the range its row plus one, if each key has one row and the rows are in another order.
    pub fn order(&self) -> Option<&[u32]> {
        match &self.rows {
            RowsByKey::Unique { rows, is_full: true } => Some(&rows[..rows.len() - 1]),
            _ => None,
        }
    }

    /// Returns the table for rows that have been put in the order of their keys.
    pub fn in_order(self) -> Self {
        match &self.rows {
            RowsByKey::Unique { rows, is_full: true } => {
                Self { smallest: self.smallest, rows: RowsByKey::InOrder(rows.len() as u32 - 1) }
            }
            _ => self,
        }
    }

    /// The key range of the table, if every key has at most one row.
    pub fn range(&self) -> Option<TableOrder> {
        let range = match &self.rows {
            RowsByKey::InOrder(count) => u64::from(*count),
            RowsByKey::Unique { rows, .. } => rows.len() as u64 - 1,
            RowsByKey::Grouped { .. } => return None,
        };
        Some(TableOrder::Key { smallest: self.smallest, range })
    }

    /// Whether every key has at most one row, so that [`PerfectTable::find_one`] finds all matches.
    pub fn is_unique(&self) -> bool {
        !matches!(self.rows, RowsByKey::Grouped { .. })
    }

    /// Finds the build row of each key in the table, and the probe row of the key. Only for unique keys.
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
            RowsByKey::Unique { rows, .. } => {
                look_up_slots(rows, smallest, |row| row.wrapping_sub(1), lookups, build, probe);
            }
            RowsByKey::Grouped { .. } => unreachable!("keys that are not unique"),
        }
    }

    /// Appends the range of matches of each key; [`PerfectTable::row`] returns the row at a place in it.
    pub fn find(&self, keys: &[u64], begins: &mut Vec<u32>, ends: &mut Vec<u32>) {
        let RowsByKey::Grouped { starts, .. } = &self.rows else { unreachable!("unique keys") };
        let starts: &[u32] = starts;
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
        let RowsByKey::Grouped { rows, .. } = &self.rows else { unreachable!("unique keys") };
        rows[place as usize]
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

/// Groups rows by key.
fn grouped(dealt: &Dealt<[u32; 2]>, slots: Slots) -> Result<RowsByKey> {
    let mut starts = PageVec::<u32>::zeroed(slots.count + 1)?;
    let mut rows = PageVec::<u32>::zeroed(dealt.len())?;
    dealt.sort(0, &mut starts, &mut rows, |[slot, _]| *slot, |[_, row]| row, |_| {});
    Ok(RowsByKey::Grouped { starts, rows })
}
