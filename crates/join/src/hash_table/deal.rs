//! Partitions rows on several threads.

use std::ops::Range;

use overspill_machine::memory::HUGE;

use super::payload_rows::PayloadRows;
use crate::error::Result;
use crate::keys::Word;
use crate::parallel::{in_parallel, ranges, split};
use crate::radix::{PartitionCursor, PartitionMethod, RadixPartitioner};

/// The bits of the hash that rows are partitioned by: the lower half, because spilling partitions by the upper bits.
pub(super) const HASH_BITS: u32 = 32;

/// Rows of a partition: the working data of one partition then stays in the second-level cache.
const ROWS_PER_PARTITION: usize = 32 << 10;
/// Maximum partitions that a thread writes to without a TLB or cache miss at each write.
const MAX_PARTITIONS: usize = 512;

/// Items of a partition that are read at once.
const READ_TOGETHER: usize = 1024;

/// How slots are divided into partitions: by their upper bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    /// Number of partitions.
    partitions: usize,
    /// A partition has 2^`shift` slots.
    shift: u32,
    /// Number of all slots.
    pub count: usize,
}

impl Slots {
    /// Divides `count` slots, over which `rows` rows are spread.
    pub fn cut(count: usize, rows: usize) -> Self {
        let wanted = (rows / ROWS_PER_PARTITION).clamp(1, MAX_PARTITIONS);
        let shift = count.div_ceil(wanted).next_power_of_two().ilog2();
        Self { partitions: count.div_ceil(1 << shift).max(1), shift, count }
    }

    /// The same partitions with fewer slots: slots that differ only in the last `bits` bits are merged.
    fn merged(self, bits: u32) -> Self {
        Self { partitions: self.partitions, shift: self.shift - bits, count: self.count.div_ceil(1 << bits) }
    }

    /// The partition of an item, by its slot. An item of a row that is skipped belongs to none.
    #[inline(always)]
    fn place<const WORDS: usize>(self, item: Option<(usize, [u64; WORDS])>) -> (usize, [u64; WORDS]) {
        item.map_or((usize::MAX, [0; WORDS]), |(slot, item)| (slot >> self.shift, item))
    }

    /// Number of slots in each partition.
    fn lengths(self) -> impl Iterator<Item = usize> {
        let length = 1usize << self.shift;
        (0..self.partitions).map(move |partition| length.min(self.count - (partition << self.shift).min(self.count)))
    }
}

/// Partitioned items of `WORDS` words.
#[derive(Debug)]
pub(super) struct Dealt<const WORDS: usize> {
    /// The items that each thread has partitioned.
    hands: Vec<RadixPartitioner<WORDS>>,
    slots: Slots,
    threads: usize,
}

impl<const WORDS: usize> Dealt<WORDS> {
    /// Maximum bytes of an item: blocks of the partitions that are not full take an eighth more.
    pub const ITEM_BYTES: usize = WORDS * size_of::<u64>() * 9 / 8;

    /// Partitions rows. `item` returns the slot of a row and the item for the slot's partition. `None` skips the row.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub fn new(
        rows: usize,
        slots: Slots,
        threads: usize,
        item: impl Fn(usize) -> Option<(usize, [u64; WORDS])> + Sync,
    ) -> Result<Self> {
        Self::of_hands(ranges(rows, threads), slots, threads, ExactSizeIterator::len, |range, hand| {
            hand.push_rows(range, |row| slots.place(item(row)));
        })
    }

    /// Like `new`, for the keys and payloads of rows in chunks.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub fn of_chunks(
        rows: &impl PayloadRows,
        slots: Slots,
        threads: usize,
        slot_of: impl Fn(u64) -> usize + Sync,
        item: impl Fn(u64, u64) -> [u64; WORDS] + Sync,
    ) -> Result<Self> {
        let length = |numbers: &Range<usize>| numbers.clone().map(|number| rows.rows(number)).sum();
        Self::of_hands(ranges(rows.chunks(), threads), slots, threads, length, |numbers, hand| {
            for number in numbers {
                let (chunk, payloads) = (rows.keys(number), rows.payloads(number));
                let (keys, payloads) = (&chunk.keys[..], &payloads[..chunk.keys.len()]);
                let item_of = |row: usize| (slot_of(keys[row]), item(keys[row], payloads[row]));
                // Checks here, and not for each row, whether there are rows that cannot match.
                match &chunk.matchable {
                    None => hand.push_rows(0..keys.len(), |row| slots.place(Some(item_of(row)))),
                    Some(matchable) => {
                        hand.push_rows(0..keys.len(), |row| slots.place(matchable.is_valid(row).then(|| item_of(row))))
                    }
                }
            }
        })
    }

    /// Lets each thread `deal` parts of the rows to its hand; `length` returns the number of rows of a part.
    fn of_hands(
        parts: Vec<Range<usize>>,
        slots: Slots,
        threads: usize,
        length: impl Fn(&Range<usize>) -> usize + Sync,
        deal: impl Fn(Range<usize>, &mut RadixPartitioner<WORDS>) + Sync,
    ) -> Result<Self> {
        let hands = in_parallel(threads, parts, |part| {
            let rows = length(&part);
            // What fits the cache is read there soon.
            let is_large = rows * WORDS * size_of::<u64>() >= HUGE;
            let method = if is_large { PartitionMethod::WriteCombining } else { PartitionMethod::Standard };
            let mut hand = RadixPartitioner::new(method)?;
            hand.begin(slots.partitions, rows)?;
            deal(part, &mut hand);
            hand.finish();
            Ok(hand)
        });
        Ok(Self { hands: hands.into_iter().collect::<Result<_>>()?, slots, threads })
    }

    /// Sorts the items by slot; partitions are adjacent. Writes the start of each slot to `starts`, which must be zeroed and
    /// have one place more than there are slots. Writes the items, mapped by `output_of`, to `sorted`. Items of a slot keep the
    /// order of their rows, until `finish` is called with them. Slots that differ only in the last `merged_bits` bits are
    /// merged.
    pub fn sort<O: Send>(
        &self,
        merged_bits: u32,
        starts: &mut [u32],
        sorted: &mut [O],
        slot_of: impl Fn(&[u64; WORDS]) -> u32 + Sync,
        output_of: impl Fn([u64; WORDS]) -> O + Sync,
        finish: impl Fn(&mut [O]) + Sync,
    ) {
        let slots = self.slots.merged(merged_bits);
        let counts: Vec<usize> = self.counts().collect();
        let mut base = 0;
        let pieces = split(&mut starts[1..], slots.lengths())
            .into_iter()
            .zip(split(sorted, counts))
            .enumerate()
            .map(|(partition, (ends, sorted))| {
                let piece = Piece { partition, base, ends, sorted };
                base += piece.sorted.len() as u32;
                piece
            })
            .collect();
        in_parallel(self.threads, pieces, |Piece { partition, base, ends, sorted }| {
            let slot_of = |item: &[u64; WORDS]| (slot_of(item) >> merged_bits) as usize - (partition << slots.shift);
            self.for_each(partition, |item| ends[slot_of(&item)] += 1);
            let mut next = base;
            for end in &mut *ends {
                next += std::mem::replace(end, next);
            }
            // Once all items are in place, the position of each slot is its end, which is where the next slot starts.
            self.for_each(partition, |item| {
                let place = &mut ends[slot_of(&item)];
                sorted[(*place - base) as usize] = output_of(item);
                *place += 1;
            });
            let mut begin = 0;
            for end in &*ends {
                let end = (end - base) as usize;
                finish(&mut sorted[begin..end]);
                begin = end;
            }
        });
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.counts().sum()
    }

    /// Number of items in each partition.
    pub fn counts(&self) -> impl Iterator<Item = usize> {
        (0..self.slots.partitions).map(|partition| self.hands.iter().map(|hand| hand.rows(partition)).sum())
    }

    /// Number of threads that partitioned the items.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work` with the words of the items of a partition, in row order, some items at a time. Stops once it returns
    /// false.
    pub fn for_some(&self, partition: usize, mut work: impl FnMut([&[u64]; WORDS]) -> bool) {
        let mut words = [[0; READ_TOGETHER]; WORDS];
        for hand in &self.hands {
            let mut cursor = PartitionCursor::new(hand, partition);
            loop {
                let count = hand.read(&mut cursor, words.each_mut().map(|column| &mut column[..]));
                if count > 0 && !work(words.each_ref().map(|column| &column[..count])) {
                    return;
                }
                if count < READ_TOGETHER {
                    break;
                }
            }
        }
    }

    /// Calls `work` with each item of a partition, in row order.
    fn for_each(&self, partition: usize, mut work: impl FnMut([u64; WORDS])) {
        self.for_some(partition, |words| {
            (0..words[0].len()).for_each(|item| work(words.map(|column| column[item])));
            true
        });
    }
}

/// Partitions the rows for which `is_matchable` holds by the hashes of their keys, as entries of key and row. `key_of` is
/// called once for each row.
pub(super) fn deal_by_hash<K: Word<Entry = [u64; WORDS]>, const WORDS: usize>(
    rows: usize,
    key_of: impl Fn(usize) -> K + Sync,
    is_matchable: impl Fn(usize) -> bool + Sync,
    threads: usize,
) -> Result<Dealt<WORDS>> {
    Dealt::new(rows, Slots::cut(1 << HASH_BITS, rows), threads, |row| {
        is_matchable(row).then(|| {
            let key = key_of(row);
            let hash = key.hash() as u32;
            (hash as usize, key.entry(row as u32, hash))
        })
    })
}

/// The part of the output for one partition.
struct Piece<'a, O> {
    partition: usize,
    /// Number of items in the partitions before.
    base: u32,
    ends: &'a mut [u32],
    sorted: &'a mut [O],
}
