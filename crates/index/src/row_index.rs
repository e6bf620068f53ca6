//! An index over a column of rows that stay where they are.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{Array, ArrayRef};
use overspill_advisor::IndexKind;
use overspill_machine::memory::PageVec;
use overspill_machine::{Error, Result};

use crate::index::Index;
use crate::keys::SortedKeys;
use crate::words::OrderedWords;

/// Bits of the distance to the smallest key by which keys are dealt out before they are sorted: few enough that each
/// part is written to without a miss of the translation cache, and enough that a part is sorted within a cache.
const BITS: u32 = 11;

/// The numbers of rows in the order of a column, and an [`Index`] over their keys. Rows with a null are not in it.
#[derive(Debug)]
pub struct RowIndex {
    index: Index,
    rows: PageVec<u32>,
    nulls: usize,
}

/// A column whose rows are to be sorted, and how they are dealt out for that.
pub struct RowOrder<'a> {
    /// The words of each array, and its rows.
    arrays: Vec<(OrderedWords<'a>, usize)>,
    smallest: u64,
    shift: u32,
    first_row: u32,
    /// The place of the first row of each part, and the number of all rows.
    starts: Vec<usize>,
    is_sorted: bool,
}

impl RowIndex {
    /// Bytes of a key and a row number.
    pub const ROW_BYTES: usize = size_of::<u64>() + size_of::<u32>();

    /// Builds an index over a column on `threads` threads. `O(n log n)`; `O(n)` if the column is sorted.
    ///
    /// # Errors
    /// If the system does not provide the memory, or `is_cancelled` has become true.
    pub fn build(kind: IndexKind, order: &RowOrder<'_>, threads: usize, is_cancelled: &AtomicBool) -> Result<Self> {
        let count = order.count();
        let mut numbers = PageVec::<u32>::zeroed(count)?;
        let keys = SortedKeys::write(count, |keys| order.write(threads, keys, &mut numbers, is_cancelled));
        // A cancelled build leaves keys unsorted, which `SortedKeys` refuses. The user sees that it was cancelled.
        check(is_cancelled)?;
        let index = Index::build(kind, Arc::new(keys?))?;
        Ok(Self { index, rows: numbers, nulls: order.rows() - count })
    }

    /// Merges two indexes over different rows, those of the second with larger numbers. `O(n)`.
    ///
    /// # Errors
    /// If the system does not provide the memory.
    pub fn merged(kind: IndexKind, one: &Self, other: &Self) -> Result<Self> {
        let count = one.rows.len() + other.rows.len();
        let mut rows = PageVec::<u32>::zeroed(count)?;
        let keys = SortedKeys::write(count, |keys| {
            let (mut ones, mut others) = (one.entries().peekable(), other.entries().peekable());
            for (key, row) in keys.iter_mut().zip(&mut *rows) {
                let next = match (ones.peek(), others.peek()) {
                    (Some(first), Some(second)) if second.0 < first.0 => others.next(),
                    (Some(_), _) => ones.next(),
                    (None, _) => others.next(),
                };
                if let Some(next) = next {
                    (*key, *row) = next;
                }
            }
        })?;
        Ok(Self { index: Index::build(kind, Arc::new(keys))?, rows, nulls: one.nulls + other.nulls })
    }

    /// Keys and row numbers in order.
    fn entries(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.index.keys().iter().copied().zip(self.rows.iter().copied())
    }

    /// The index over the keys.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The number of the row at each place of the index.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// The number of rows with a null.
    pub fn nulls(&self) -> usize {
        self.nulls
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        self.rows.len() * Self::ROW_BYTES + self.index.bytes()
    }
}

fn check(is_cancelled: &AtomicBool) -> Result<()> {
    if is_cancelled.load(Ordering::Relaxed) {
        return Err(Error::Invalid("the index is not built, as its statement was cancelled".to_owned()));
    }
    Ok(())
}

impl<'a> RowOrder<'a> {
    /// Of a column that comes in several arrays, whose rows are numbered one after the other from `first_row` on. `O(n)`.
    ///
    /// # Errors
    /// If the type is not [supported](OrderedWords::supports), there are more than 2^32 - 1 rows, or `is_cancelled` has become true.
    pub fn of(column: &'a [ArrayRef], first_row: usize, is_cancelled: &AtomicBool) -> Result<Self> {
        let rows: usize = column.iter().map(|array| array.len()).sum();
        let Ok(first_row) = u32::try_from(first_row + rows).map(|end| end - rows as u32) else {
            let rows = first_row + rows;
            return Err(Error::Invalid(format!("an index holds at most {} rows, and there are {rows}", u32::MAX)));
        };
        let arrays = column.iter().map(|array| match OrderedWords::of(array.as_ref()) {
            Some(words) => Ok((words, array.len())),
            None => {
                Err(Error::Invalid(format!("values of type {} have no order that an index follows", array.data_type())))
            }
        });
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        let (mut smallest, mut largest, mut last, mut is_sorted) = (u64::MAX, 0, 0, true);
        for (words, _) in &arrays {
            check(is_cancelled)?;
            words.for_each(|_, word| {
                smallest = smallest.min(word);
                largest = largest.max(word);
                is_sorted &= last <= word;
                last = word;
            });
        }
        let distance = largest.saturating_sub(smallest);
        let shift = (u64::BITS - distance.leading_zeros()).saturating_sub(BITS);
        let mut counts = vec![0; (distance >> shift) as usize + 1];
        for (words, _) in &arrays {
            check(is_cancelled)?;
            words.for_each(|_, word| counts[((word - smallest) >> shift) as usize] += 1);
        }
        let mut starts = vec![0];
        starts.extend(counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        }));
        Ok(Self { arrays, smallest, shift, first_row, starts, is_sorted })
    }

    /// The number of rows.
    fn rows(&self) -> usize {
        self.arrays.iter().map(|(_, rows)| rows).sum()
    }

    /// The number of rows that are not null.
    fn count(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Bytes that keys and row numbers take, and sorting them on `threads` threads.
    pub fn building_bytes(&self, threads: usize) -> usize {
        // The pairs of a part are sorted apart.
        let largest = self.starts.windows(2).map(|part| part[1] - part[0]).max().unwrap_or(0);
        let sorting = if self.is_sorted { 0 } else { threads * largest * size_of::<(u64, u32)>() };
        self.count() * RowIndex::ROW_BYTES + sorting.min(self.count() * size_of::<(u64, u32)>())
    }

    fn part(&self, word: u64) -> usize {
        ((word - self.smallest) >> self.shift) as usize
    }

    /// Consecutive parts for each thread, with about as many rows.
    fn of_threads(&self, threads: usize) -> Vec<Range<usize>> {
        let (parts, rows) = (self.starts.len() - 1, self.starts[self.starts.len() - 1]);
        let ends = (1..=threads).map(|thread| {
            let share = rows * thread / threads;
            if thread == threads { parts } else { self.starts.partition_point(|start| *start < share).min(parts) }
        });
        let mut first = 0;
        ends.map(|end| {
            let end = end.max(first);
            std::mem::replace(&mut first, end)..end
        })
        .collect()
    }

    /// Writes keys and row numbers in order. Each thread reads all words, and writes and sorts those of its own parts, so that no
    /// two threads write to the same memory.
    fn write(&self, threads: usize, keys: &mut [u64], rows: &mut [u32], is_cancelled: &AtomicBool) {
        let (mut keys, mut rows) = (keys, rows);
        std::thread::scope(|scope| {
            for parts in self.of_threads(threads.max(1)) {
                let count = self.starts[parts.end] - self.starts[parts.start];
                let (own_keys, other_keys) = std::mem::take(&mut keys).split_at_mut(count);
                let (own_rows, other_rows) = std::mem::take(&mut rows).split_at_mut(count);
                (keys, rows) = (other_keys, other_rows);
                scope.spawn(move || self.write_parts(parts, own_keys, own_rows, is_cancelled));
            }
        });
    }

    fn write_parts(&self, parts: Range<usize>, keys: &mut [u64], rows: &mut [u32], is_cancelled: &AtomicBool) {
        let first = self.starts[parts.start];
        let mut next: Vec<usize> = self.starts[parts.clone()].iter().map(|start| start - first).collect();
        let mut first_row = self.first_row;
        for (words, length) in &self.arrays {
            if is_cancelled.load(Ordering::Relaxed) {
                return;
            }
            words.for_each(|row, word| {
                let part = self.part(word);
                if parts.contains(&part) {
                    let place = &mut next[part - parts.start];
                    keys[*place] = word;
                    rows[*place] = first_row + row as u32;
                    *place += 1;
                }
            });
            first_row += *length as u32;
        }
        if self.is_sorted {
            return;
        }
        let mut pairs = Vec::new();
        for part in parts {
            if is_cancelled.load(Ordering::Relaxed) {
                return;
            }
            let range = self.starts[part] - first..self.starts[part + 1] - first;
            let (keys, rows) = (&mut keys[range.clone()], &mut rows[range]);
            pairs.clear();
            pairs.extend(keys.iter().copied().zip(rows.iter().copied()));
            pairs.sort_unstable();
            for ((key, row), pair) in keys.iter_mut().zip(rows).zip(&pairs) {
                (*key, *row) = *pair;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn column(random: &mut StdRng, arrays: usize) -> Vec<ArrayRef> {
        let (spread, nulls) = ([1, 50, 1 << 40, i64::MAX][random.random_range(0..4)], random.random_bool(0.5));
        let ascending = random.random_bool(0.3);
        let mut next = -(spread / 2);
        let mut value = |random: &mut StdRng| {
            next = next.saturating_add(random.random_range(0..3));
            if ascending { next } else { random.random_range(-spread..=spread) }
        };
        let mut array = |random: &mut StdRng| -> ArrayRef {
            let length = random.random_range(0..2000);
            let values = (0..length).map(|_| (!nulls || random.random_bool(0.9)).then(|| value(random)));
            Arc::new(values.collect::<Int64Array>())
        };
        (0..arrays).map(|_| array(random)).collect()
    }

    #[test]
    fn rows_are_in_the_order_of_their_keys() {
        for case in 0..200 {
            let random = &mut StdRng::seed_from_u64(case);
            let column = column(random, case as usize % 7);
            let mut expected = Vec::new();
            let mut first = 0;
            for array in &column {
                OrderedWords::of(array).unwrap().for_each(|row, word| expected.push((word, (first + row) as u32)));
                first += array.len();
            }
            expected.sort_unstable();
            let kind = IndexKind::ALL[case as usize % 5];
            let build = |column: &[ArrayRef], first_row, threads| {
                let is_cancelled = AtomicBool::new(false);
                let order = RowOrder::of(column, first_row, &is_cancelled).unwrap();
                RowIndex::build(kind, &order, threads, &is_cancelled).unwrap()
            };
            let built = build(&column, 0, 1 + case as usize % 4);
            assert_eq!(built.entries().collect::<Vec<_>>(), expected, "case {case}");
            assert_eq!(built.nulls(), first - expected.len(), "case {case}");
            // The same in two parts.
            let (one, other) = column.split_at(column.len() / 2);
            let rows_of_one: usize = one.iter().map(|array| array.len()).sum();
            let merged = RowIndex::merged(kind, &build(one, 0, 1), &build(other, rows_of_one, 1)).unwrap();
            assert_eq!(merged.entries().collect::<Vec<_>>(), expected, "case {case}");
            assert_eq!(merged.nulls(), built.nulls(), "case {case}");
        }
    }

    #[test]
    fn a_cancelled_build_ends_with_an_error() {
        let column: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(vec![2, 1]))];
        let order = RowOrder::of(&column, 0, &AtomicBool::new(false)).unwrap();
        let error = RowIndex::build(IndexKind::BTree, &order, 2, &AtomicBool::new(true)).unwrap_err();
        assert!(error.to_string().contains("cancelled"), "{error}");
        assert!(RowOrder::of(&column, 0, &AtomicBool::new(true)).is_err());
    }

    #[test]
    fn sorting_takes_the_memory_of_the_largest_parts() {
        let bytes = |values: Vec<i64>| {
            let column: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(values))];
            RowOrder::of(&column, 0, &AtomicBool::new(false)).unwrap().building_bytes(2)
        };
        let even: Vec<i64> = (0..100_000).map(|row| row * 48_271 % 100_003).collect();
        assert!((1_200_000..1_210_000).contains(&bytes(even.clone())), "{}", bytes(even));
        assert_eq!(bytes((0..1000).collect()), 12_000);
        // One part has nearly all.
        let skewed = (0..1000).map(|row| if row == 0 { i64::MAX } else { 1000 - row }).collect();
        assert_eq!(bytes(skewed), 28_000);
    }
}
