//! Single-threaded radix partitioning of columns of words.

use std::ops::Range;

use overspill_machine::memory::{CacheLine, PageVec, write_past_cache};
use overspill_machine::vectors::{VectorLoop, Vectors, with_widest_vectors};

use crate::error::Result;

/// How rows are written to their partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionMethod {
    /// Stores each word in its place. If the fanout exceeds the TLB and the cache, each store misses both.
    Standard,
    /// Collects words in one cache line per partition and column, and stores full lines past the cache (software
    /// write-combining: Wassenberg and Sanders, 2011; Balkesen et al., 2013).
    WriteCombining,
}

/// A block has about a sixteenth of the rows of a partition, so that few places stay empty, ...
const BLOCKS_PER_PARTITION: usize = 16;
/// ... within these limits. Above the upper limit it hardly matters that the next block starts elsewhere.
const MIN_BLOCK_ROWS: usize = 64;
const MAX_BLOCK_ROWS: usize = 1024;

/// Partitions rows of `COLUMNS` columns of words; the first column is the key.
///
/// Partitions are chains of blocks, so that their rows need not be counted first. In a block the lines of the columns
/// alternate, so that lines written together are adjacent. The partitioner can be reused, and keeps its memory.
#[derive(Debug)]
pub struct RadixPartitioner<const COLUMNS: usize> {
    method: PartitionMethod,
    /// The blocks, starting with the first block of each partition.
    lines: PageVec<CacheLine>,
    block_rows: usize,
    /// For each started block, the next block of its partition; 0 for none, because block 0 follows no other.
    following: Vec<u32>,
    /// For each partition, the place of its next row, counted in rows over all blocks.
    next: Vec<usize>,
    /// For each partition, the rows that do not fill a line and have not been stored; only for
    /// [`PartitionMethod::WriteCombining`].
    buffers: Vec<[CacheLine; COLUMNS]>,
    /// Number of rows that can still be added.
    room: usize,
}

/// The read position in a partition.
#[derive(Debug, Clone, Copy)]
pub struct PartitionCursor {
    partition: usize,
    /// The next row, counted over all blocks.
    place: usize,
}

impl PartitionCursor {
    /// Starts before the first row of a partition.
    pub fn new<const COLUMNS: usize>(partitioner: &RadixPartitioner<COLUMNS>, partition: usize) -> Self {
        Self { partition, place: partition * partitioner.block_rows }
    }

    /// The partition that is being read.
    pub fn partition(&self) -> usize {
        self.partition
    }
}

impl<const COLUMNS: usize> RadixPartitioner<COLUMNS> {
    /// Creates a partitioner without partitions.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub fn new(method: PartitionMethod) -> Result<Self> {
        let lines = PageVec::zeroed(0)?;
        let (following, next, buffers) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { method, lines, block_rows: MIN_BLOCK_ROWS, following, next, buffers, room: 0 })
    }

    /// Maximum bytes of `rows` rows in `fanout` partitions.
    pub fn bytes(rows: usize, fanout: usize) -> usize {
        let lines = Self::blocks(rows, fanout) * Self::block_rows(rows, fanout) / CacheLine::WORDS;
        let books = Self::blocks(rows, fanout) * size_of::<u32>() + fanout * size_of::<usize>();
        COLUMNS * (lines + fanout) * size_of::<CacheLine>() + books
    }

    fn block_rows(rows: usize, fanout: usize) -> usize {
        (rows / fanout / BLOCKS_PER_PARTITION).next_power_of_two().clamp(MIN_BLOCK_ROWS, MAX_BLOCK_ROWS)
    }

    /// Each partition has one block that is not full.
    fn blocks(rows: usize, fanout: usize) -> usize {
        fanout + rows / Self::block_rows(rows, fanout)
    }

    /// Starts `fanout` partitions for at most `rows` rows in total; discards the previous partitions.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    ///
    /// # Panics
    /// Panics if there are no partitions, or too many rows to number their blocks.
    pub fn begin(&mut self, fanout: usize, rows: usize) -> Result<()> {
        assert!(fanout > 0, "rows go to partitions");
        let blocks = Self::blocks(rows, fanout);
        assert!(u32::try_from(blocks).is_ok(), "blocks have numbers of 32 bits");
        self.block_rows = Self::block_rows(rows, fanout);
        self.room = rows;
        self.following.clear();
        self.following.reserve(blocks);
        self.following.resize(fanout, 0);
        self.next.clear();
        self.next.extend((0..fanout).map(|partition| partition * self.block_rows));
        if self.method == PartitionMethod::WriteCombining {
            self.buffers.resize(fanout, [CacheLine::default(); COLUMNS]);
        }
        let lines = COLUMNS * blocks * self.block_rows / CacheLine::WORDS;
        if self.lines.len() < lines {
            // Frees the old memory before it allocates the new.
            self.lines = PageVec::zeroed(0)?;
            self.lines = PageVec::zeroed(lines)?;
        }
        Ok(())
    }

    /// Number of rows that can still be added; skipped rows take no room.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Appends rows. `of` maps a key to its partition; rows of nonexistent partitions are skipped. `O(rows)`.
    ///
    /// # Panics
    /// Panics if columns differ in length, or if there is no room for the rows.
    #[inline]
    pub fn push(&mut self, rows: [&[u64]; COLUMNS], of: impl Fn(u64) -> usize) {
        assert!(rows.iter().all(|column| column.len() == rows[0].len()), "columns of one length");
        let count = rows[0].len();
        // Slices of the same length, which the compiler can then prove.
        let rows = rows.map(|column| &column[..count]);
        self.push_rows(0..count, |row| (of(rows[0][row]), rows.map(|column| column[row])));
    }

    /// Like [`RadixPartitioner::push`]; `row` returns the partition and the words of a row.
    ///
    /// # Panics
    /// Panics if there is no room for the rows.
    #[inline]
    pub(crate) fn push_rows(&mut self, rows: Range<usize>, row: impl Fn(usize) -> (usize, [u64; COLUMNS])) {
        assert!(rows.len() <= self.room, "as many rows as there is room for");
        let blocks = Blocks { rows: self.block_rows, following: &mut self.following };
        let (lines, next) = (&mut self.lines[..], &mut self.next[..]);
        self.room -= match self.method {
            PartitionMethod::Standard => store(CacheLine::words_mut(lines), next, blocks, rows, row),
            PartitionMethod::WriteCombining => {
                let buffers = &mut self.buffers[..next.len()];
                with_widest_vectors(WriteCombining { lines, next, buffers, blocks, rows, row })
            }
        };
    }

    /// Ends the input. Only after this call are all rows in their partitions.
    pub fn finish(&mut self) {
        for (next, buffer) in self.next.iter().zip(&self.buffers) {
            // Rows that do not fill a line are still in the buffer.
            if next % CacheLine::WORDS > 0 {
                self.lines[next / CacheLine::WORDS * COLUMNS..][..COLUMNS].copy_from_slice(buffer);
            }
        }
    }

    /// Number of partitions.
    pub fn fanout(&self) -> usize {
        self.next.len()
    }

    /// Number of rows in a partition, counted along its blocks.
    pub fn rows(&self, partition: usize) -> usize {
        let end = self.next[partition];
        let (mut block, mut rows) = (partition, 0);
        while block != end / self.block_rows {
            rows += self.block_rows;
            block = self.following[block] as usize;
        }
        rows + end % self.block_rows
    }

    /// Copies the next rows of a partition into the columns, in insertion order, as many as exist and fit. Returns their
    /// number. `O(rows)`.
    ///
    /// # Panics
    /// Panics if columns differ in length.
    pub fn read(&self, cursor: &mut PartitionCursor, mut columns: [&mut [u64]; COLUMNS]) -> usize {
        let limit = columns[0].len();
        assert!(columns.iter().all(|column| column.len() == limit), "columns of one length");
        let end = self.next[cursor.partition];
        let mut count = 0;
        while count < limit && cursor.place != end {
            let left_in_block = self.block_rows - cursor.place % self.block_rows;
            // The block of the next row to insert is not full.
            let is_last = cursor.place / self.block_rows == end / self.block_rows;
            let rows = (limit - count).min(if is_last { end - cursor.place } else { left_in_block });
            for (number, column) in columns.iter_mut().enumerate() {
                self.copy(number, cursor.place, &mut column[count..count + rows]);
            }
            count += rows;
            cursor.place = if rows < left_in_block {
                cursor.place + rows
            } else {
                self.following[cursor.place / self.block_rows] as usize * self.block_rows
            };
        }
        count
    }

    /// Copies rows of one column within a block, from `place` on.
    #[inline]
    fn copy(&self, number: usize, place: usize, column: &mut [u64]) {
        let mut lines = self.lines[place / CacheLine::WORDS * COLUMNS + number..].iter().step_by(COLUMNS);
        let mut rest = column;
        let first = place % CacheLine::WORDS;
        if first > 0
            && let Some(line) = lines.next()
        {
            let (begun, after) = rest.split_at_mut(rest.len().min(CacheLine::WORDS - first));
            begun.copy_from_slice(&line.0[first..][..begun.len()]);
            rest = after;
        }
        let (whole, part) = rest.as_chunks_mut::<{ CacheLine::WORDS }>();
        for (words, line) in whole.iter_mut().zip(&mut lines) {
            *words = line.0;
        }
        if let Some(line) = lines.next() {
            part.copy_from_slice(&line.0[..part.len()]);
        }
    }
}

/// The started blocks, with `rows` rows each.
struct Blocks<'a> {
    rows: usize,
    following: &'a mut Vec<u32>,
}

impl Blocks<'_> {
    /// The place of the row after the one at `place`.
    #[inline(always)]
    fn after(&mut self, place: usize) -> usize {
        // The rows of a block are a power of two.
        if (place + 1) & (self.rows - 1) != 0 {
            return place + 1;
        }
        let begun = self.following.len();
        self.following[place / self.rows] = begun as u32;
        self.following.push(0);
        begun * self.rows
    }
}

/// Stores each word in its place; returns the number of stored rows.
fn store<const COLUMNS: usize>(
    words: &mut [u64],
    next: &mut [usize],
    mut blocks: Blocks<'_>,
    rows: Range<usize>,
    row: impl Fn(usize) -> (usize, [u64; COLUMNS]),
) -> usize {
    let mut stored = 0;
    for (partition, row) in rows.map(row) {
        let Some(next) = next.get_mut(partition) else { continue };
        stored += 1;
        let place = *next;
        *next = blocks.after(place);
        for (number, word) in row.into_iter().enumerate() {
            let line = place / CacheLine::WORDS * COLUMNS + number;
            words[line * CacheLine::WORDS + place % CacheLine::WORDS] = word;
        }
    }
    stored
}

/// Collects lines in the cache and stores full ones past it; returns the number of stored rows.
struct WriteCombining<'a, F, const COLUMNS: usize> {
    lines: &'a mut [CacheLine],
    next: &'a mut [usize],
    buffers: &'a mut [[CacheLine; COLUMNS]],
    blocks: Blocks<'a>,
    rows: Range<usize>,
    row: F,
}

impl<F: Fn(usize) -> (usize, [u64; COLUMNS]), const COLUMNS: usize> VectorLoop for WriteCombining<'_, F, COLUMNS> {
    type Output = usize;

    #[inline(always)]
    fn run(self, vectors: impl Vectors) -> usize {
        let Self { lines, next, buffers, mut blocks, rows, row } = self;
        write_past_cache(lines, |writer| {
            let mut stored = 0;
            for (partition, row) in rows.map(row) {
                let (Some(next), Some(buffer)) = (next.get_mut(partition), buffers.get_mut(partition)) else {
                    continue;
                };
                stored += 1;
                let place = *next;
                let word = place % CacheLine::WORDS;
                for (line, value) in buffer.iter_mut().zip(row) {
                    line.0[word] = value;
                }
                *next = if word < CacheLine::WORDS - 1 {
                    place + 1
                } else {
                    for (number, line) in buffer.iter().enumerate() {
                        writer.write(place / CacheLine::WORDS * COLUMNS + number, line, vectors);
                    }
                    blocks.after(place)
                };
            }
            stored
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All rows of a partition, read in chunks.
    fn read(partitioner: &RadixPartitioner<2>, partition: usize, limit: usize) -> Vec<(u64, u64)> {
        let (mut keys, mut numbers) = (vec![0; limit], vec![0; limit]);
        let mut cursor = PartitionCursor::new(partitioner, partition);
        let mut rows = vec![];
        loop {
            let count = partitioner.read(&mut cursor, [&mut keys, &mut numbers]);
            rows.extend(keys.iter().copied().zip(numbers.iter().copied()).take(count));
            if count < limit {
                return rows;
            }
        }
    }

    /// Rows with their origin in the second column.
    fn check(keys: &[u64], fanout: usize, batch: usize, of: impl Fn(u64) -> usize) {
        let numbers: Vec<u64> = (0..keys.len() as u64).collect();
        let mut expected = vec![Vec::new(); fanout];
        for (key, number) in keys.iter().zip(&numbers) {
            if of(*key) < fanout {
                expected[of(*key)].push((*key, *number));
            }
        }
        for method in [PartitionMethod::Standard, PartitionMethod::WriteCombining] {
            let mut partitioner = RadixPartitioner::<2>::new(method).unwrap();
            // Reuses the partitioner after other partitions.
            partitioner.begin(3, 10).unwrap();
            partitioner.push([&[5, 6, 7], &[1, 2, 3]], |key| if key == 6 { 0 } else { 2 });
            partitioner.finish();
            assert_eq!(partitioner.room(), 7);
            assert_eq!(
                [0, 1, 2].map(|partition| read(&partitioner, partition, 1)),
                [vec![(6, 2)], vec![], vec![(5, 1), (7, 3)]]
            );
            partitioner.begin(fanout, keys.len()).unwrap();
            for (keys, numbers) in keys.chunks(batch).zip(numbers.chunks(batch)) {
                partitioner.push([keys, numbers], &of);
            }
            partitioner.finish();
            let stored: usize = expected.iter().map(Vec::len).sum();
            assert_eq!((partitioner.fanout(), partitioner.room()), (fanout, keys.len() - stored));
            for (partition, expected) in expected.iter().enumerate() {
                for limit in [5, 1000, 8192] {
                    let found = read(&partitioner, partition, limit);
                    assert!(found == *expected, "{method:?}, partition {partition} of {fanout}, {limit} at a time");
                    assert_eq!(partitioner.rows(partition), expected.len());
                }
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
        // Exactly full blocks.
        check(&[7; 2 * MIN_BLOCK_ROWS], 3, MIN_BLOCK_ROWS, |_| 0);
        check(
            &(0..1_000).collect::<Vec<_>>(),
            8,
            100,
            |key| if key % 3 == 0 { key as usize % 8 } else { 8 + key as usize },
        );
    }

    #[test]
    #[should_panic(expected = "as many rows as there is room for")]
    fn more_rows_than_there_is_room_for_are_refused() {
        let mut partitioner = RadixPartitioner::<1>::new(PartitionMethod::WriteCombining).unwrap();
        partitioner.begin(2, 3).unwrap();
        partitioner.push([&[1, 2, 3, 4]], |_| 0);
    }
}
