//! Radix partitioning of columns of words, on one thread.

use std::array;

use overspill_machine::memory::{CacheLine, write_past_cache};

use crate::error::Result;
use crate::memory::PageVec;

/// How rows get to their partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionMethod {
    /// Each word is stored where it belongs. From a fanout beyond the TLB and the cache on, each store misses both.
    Standard,
    /// Words are gathered in a cache line for each partition and column, which is stored past the cache when it is full
    /// (software write-combining: Wassenberg and Sanders, 2011; Balkesen et al., 2013).
    WriteCombining,
}

/// Puts rows of `COLUMNS` columns of words, the first of which is the key, into partitions whose sizes were counted before.
/// It can be used again and again, and keeps its memory.
#[derive(Debug)]
pub struct RadixPartitioner<const COLUMNS: usize> {
    method: PartitionMethod,
    /// All columns, one after the other, each of as many lines; and perhaps more, from an earlier use.
    lines: PageVec<CacheLine>,
    /// The first line of each partition, and the line after the last of all.
    starts: Vec<usize>,
    counts: Vec<usize>,
    /// For each partition the word where its next row goes.
    next: Vec<usize>,
    /// For each partition the rows that have not been stored, as far as they fill no line; only for
    /// [`PartitionMethod::WriteCombining`].
    buffers: Vec<[CacheLine; COLUMNS]>,
}

impl<const COLUMNS: usize> RadixPartitioner<COLUMNS> {
    /// No partitions yet.
    ///
    /// # Errors
    /// If the system does not give the memory.
    pub fn new(method: PartitionMethod) -> Result<Self> {
        let lines = PageVec::zeroed(0)?;
        Ok(Self { method, lines, starts: vec![0], counts: Vec::new(), next: Vec::new(), buffers: Vec::new() })
    }

    /// The bytes that so many rows take at most.
    pub fn bytes(rows: usize, fanout: usize) -> usize {
        // Each partition starts at a line, and has one that is being filled.
        COLUMNS * (rows * size_of::<u64>() + 2 * fanout * size_of::<CacheLine>())
    }

    /// Starts on partitions of so many rows each; those before are gone.
    ///
    /// # Errors
    /// If the system does not give the memory.
    pub fn begin(&mut self, counts: Vec<usize>) -> Result<()> {
        self.starts.clear();
        let mut lines = 0;
        for count in &counts {
            self.starts.push(lines);
            lines += count.div_ceil(CacheLine::WORDS);
        }
        self.next.clear();
        self.next.extend(self.starts.iter().map(|line| line * CacheLine::WORDS));
        self.starts.push(lines);
        if self.method == PartitionMethod::WriteCombining {
            self.buffers.resize(counts.len(), [CacheLine::default(); COLUMNS]);
        }
        self.counts = counts;
        if self.lines.len() < COLUMNS * lines {
            // First freed, then allocated.
            self.lines = PageVec::zeroed(0)?;
            self.lines = PageVec::zeroed(COLUMNS * lines)?;
        }
        Ok(())
    }

    fn lines_per_column(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Adds rows, of whose keys `of` tells the partition; a row of none that there is is left out. `O(rows)`.
    ///
    /// # Panics
    /// If columns differ in length, or a partition gets more rows than were counted and has no room for them.
    #[inline]
    pub fn push(&mut self, rows: [&[u64]; COLUMNS], of: impl Fn(u64) -> usize) {
        assert!(rows.iter().all(|column| column.len() == rows[0].len()), "columns of one length");
        let count = rows[0].len();
        // Of a length that the compiler knows to be the same.
        let rows = rows.map(|column| &column[..count]);
        let length = self.lines_per_column();
        let (lines, next, buffers) = (&mut self.lines[..], &mut self.next[..], &mut self.buffers[..]);
        match self.method {
            PartitionMethod::Standard => {
                let words = CacheLine::words_mut(lines);
                for (row, key) in rows[0].iter().enumerate() {
                    let Some(next) = next.get_mut(of(*key)) else { continue };
                    let place = *next;
                    *next += 1;
                    for (number, column) in rows.iter().enumerate() {
                        words[number * length * CacheLine::WORDS + place] = column[row];
                    }
                }
            }
            PartitionMethod::WriteCombining => write_past_cache(lines, |writer| {
                for (row, key) in rows[0].iter().enumerate() {
                    let partition = of(*key);
                    let Some(next) = next.get_mut(partition) else { continue };
                    let place = *next;
                    *next += 1;
                    let buffer = &mut buffers[partition];
                    let word = place % CacheLine::WORDS;
                    for (line, column) in buffer.iter_mut().zip(&rows) {
                        line.0[word] = column[row];
                    }
                    if word == CacheLine::WORDS - 1 {
                        for (number, line) in buffer.iter().enumerate() {
                            writer.write(number * length + place / CacheLine::WORDS, line);
                        }
                    }
                }
            }),
        }
    }

    /// Says that all rows have come; only then are all in their partitions.
    ///
    /// # Panics
    /// If a partition has not been given as many rows as were counted.
    pub fn finish(&mut self) {
        let length = self.lines_per_column() * CacheLine::WORDS;
        let words = CacheLine::words_mut(&mut self.lines);
        for (partition, (next, count)) in self.next.iter().zip(&self.counts).enumerate() {
            let first = self.starts[partition] * CacheLine::WORDS;
            assert_eq!(next - first, *count, "as many rows as were counted");
            // Rows that fill no line are still in the buffer.
            let begin = next - next % CacheLine::WORDS;
            if let Some(buffer) = self.buffers.get(partition) {
                for (number, line) in buffer.iter().enumerate() {
                    let column = &mut words[number * length..];
                    column[begin..*next].copy_from_slice(&line.0[..next - begin]);
                }
            }
        }
    }

    /// How many partitions there are.
    pub fn fanout(&self) -> usize {
        self.counts.len()
    }

    /// The columns of a partition.
    pub fn columns(&self, partition: usize) -> [&[u64]; COLUMNS] {
        let (begin, end) = (self.starts[partition], self.starts[partition + 1]);
        let length = self.lines_per_column();
        let column = |number: usize| &self.lines[number * length + begin..number * length + end];
        array::from_fn(|number| &CacheLine::words(column(number))[..self.counts[partition]])
    }
}

/// Adds to `counts` how many of the keys go to each partition, without those that go to none that there is. `O(keys)`.
pub fn count_rows(keys: &[u64], counts: &mut [usize], of: impl Fn(u64) -> usize) {
    for key in keys {
        if let Some(count) = counts.get_mut(of(*key)) {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows whose second column tells where they come from.
    fn check(keys: &[u64], fanout: usize, batch: usize, of: impl Fn(u64) -> usize) {
        let numbers: Vec<u64> = (0..keys.len() as u64).collect();
        let mut expected = vec![Vec::new(); fanout];
        for (key, number) in keys.iter().zip(&numbers) {
            if of(*key) < fanout {
                expected[of(*key)].push((*key, *number));
            }
        }
        let mut counts = vec![0; fanout];
        count_rows(keys, &mut counts, &of);
        for method in [PartitionMethod::Standard, PartitionMethod::WriteCombining] {
            let mut partitioner = RadixPartitioner::<2>::new(method).unwrap();
            // Twice, with other partitions before.
            partitioner.begin(vec![1, 0, 2]).unwrap();
            partitioner.push([&[5, 6, 7], &[1, 2, 3]], |key| if key == 6 { 0 } else { 2 });
            partitioner.finish();
            assert_eq!(partitioner.columns(2), [&[5, 7][..], &[1, 3]]);
            partitioner.begin(counts.clone()).unwrap();
            for (keys, numbers) in keys.chunks(batch).zip(numbers.chunks(batch)) {
                partitioner.push([keys, numbers], &of);
            }
            partitioner.finish();
            assert_eq!(partitioner.fanout(), fanout);
            for (partition, expected) in expected.iter().enumerate() {
                let [keys, numbers] = partitioner.columns(partition);
                let found: Vec<_> = keys.iter().copied().zip(numbers.iter().copied()).collect();
                assert_eq!(found, *expected, "{method:?}, partition {partition} of {fanout}");
            }
        }
    }

    #[test]
    fn rows_keep_their_order_within_their_partitions() {
        let keys: Vec<u64> = (0..20_011u64).map(|row| row.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20).collect();
        for (fanout, batch) in [(1, 20_011), (2, 1), (64, 7), (64, 8192), (4096, 1000)] {
            check(&keys, fanout, batch, |key| key as usize % fanout);
        }
    }

    #[test]
    fn partitions_may_be_empty_or_have_all_rows_and_rows_may_be_left_out() {
        check(&[], 4, 8, |_| 0);
        check(&[7; 1_000], 16, 333, |_| 9);
        check(
            &(0..1_000).collect::<Vec<_>>(),
            8,
            100,
            |key| if key % 3 == 0 { key as usize % 8 } else { 8 + key as usize },
        );
    }

    #[test]
    #[should_panic(expected = "as many rows as were counted")]
    fn rows_that_were_counted_must_come() {
        let mut partitioner = RadixPartitioner::<1>::new(PartitionMethod::WriteCombining).unwrap();
        partitioner.begin(vec![3, 1]).unwrap();
        partitioner.finish();
    }
}
