//! Partitions rows on several threads.

use super::payload_rows::PayloadRows;
use crate::error::Result;
use crate::keys::Word;
use crate::parallel::{in_parallel, ranges};

/// The bits of the hash that rows are partitioned by: the lower half, because spilling partitions by the upper bits.
pub(super) const HASH_BITS: u32 = 32;

/// Rows of a partition: the working data of one partition then stays in the second-level cache.
const ROWS_PER_PARTITION: usize = 32 << 10;
/// Maximum partitions that a thread writes to without a TLB or cache miss at each write.
const MAX_PARTITIONS: usize = 512;

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

    fn partition(self, slot: usize) -> usize {
        slot >> self.shift
    }

    fn no_items(self) -> Vec<usize> {
        vec![0; self.partitions]
    }

    /// Number of slots in each partition.
    fn lengths(self) -> impl Iterator<Item = usize> {
        let length = 1usize << self.shift;
        (0..self.partitions).map(move |partition| length.min(self.count - (partition << self.shift).min(self.count)))
    }
}

/// Reserves exactly `counts` items for each partition.
fn hand_of<T>(counts: Vec<usize>) -> Vec<Vec<T>> {
    counts.into_iter().map(Vec::with_capacity).collect()
}

/// Partitioned items.
#[derive(Debug)]
pub(super) struct Dealt<T> {
    /// Items by thread, and then by partition.
    hands: Vec<Vec<Vec<T>>>,
    slots: Slots,
    threads: usize,
}

impl<T: Copy + Send + Sync> Dealt<T> {
    /// Partitions rows. `item` returns the slot of a row and the item for the slot's partition. `None` skips the row.
    pub fn new(rows: usize, slots: Slots, threads: usize, item: impl Fn(usize) -> Option<(usize, T)> + Sync) -> Self {
        let hands = in_parallel(threads, ranges(rows, threads), |range| {
            let mut counts = slots.no_items();
            range.clone().filter_map(&item).for_each(|(slot, _)| counts[slots.partition(slot)] += 1);
            let mut hand = hand_of(counts);
            range.filter_map(&item).for_each(|(slot, value)| hand[slots.partition(slot)].push(value));
            hand
        });
        Self { hands, slots, threads }
    }

    /// Like `new`, for the keys and payloads of rows in chunks.
    pub fn of_chunks(
        rows: &impl PayloadRows,
        slots: Slots,
        threads: usize,
        slot_of: impl Fn(u64) -> usize + Sync,
        item: impl Fn(u64, u64) -> T + Sync,
    ) -> Result<Self> {
        let hands = in_parallel(threads, ranges(rows.chunks(), threads), |numbers| {
            let mut counts = slots.no_items();
            for number in numbers.clone() {
                rows.keys(number)?.rows().for_each(|(_, key)| counts[slots.partition(slot_of(key))] += 1);
            }
            let mut hand = hand_of(counts);
            for number in numbers {
                let payloads = rows.payloads(number);
                for (row, key) in rows.keys(number)?.rows() {
                    hand[slots.partition(slot_of(key))].push(item(key, payloads[row]));
                }
            }
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
        slot_of: impl Fn(&T) -> u32 + Sync,
        output_of: impl Fn(T) -> O + Sync,
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
            let slot_of = |item: &T| (slot_of(item) >> merged_bits) as usize - (partition << slots.shift);
            for item in self.items(partition) {
                ends[slot_of(&item)] += 1;
            }
            let mut next = base;
            for end in &mut *ends {
                next += std::mem::replace(end, next);
            }
            // Once all items are in place, the position of each slot is its end, which is where the next slot starts.
            for item in self.items(partition) {
                let place = &mut ends[slot_of(&item)];
                sorted[(*place - base) as usize] = output_of(item);
                *place += 1;
            }
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
        self.hands.iter().flatten().map(Vec::len).sum()
    }

    /// Number of items in each partition.
    pub fn counts(&self) -> impl Iterator<Item = usize> {
        (0..self.slots.partitions).map(|partition| self.hands.iter().map(|hand| hand[partition].len()).sum())
    }

    /// Number of threads that partitioned the items.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The items of a partition, in row order, in one slice per thread.
    pub fn hands(&self, partition: usize) -> impl Iterator<Item = &[T]> {
        self.hands.iter().map(move |hand| &hand[partition][..])
    }

    /// The items of a partition, in row order.
    fn items(&self, partition: usize) -> impl Iterator<Item = T> {
        self.hands(partition).flatten().copied()
    }
}

/// Partitions the rows for which `is_matchable` holds by the hashes of their keys, as entries of key and row.
pub(super) fn deal_by_hash<K: Word>(
    keys: &[K],
    is_matchable: impl Fn(usize) -> bool + Sync,
    threads: usize,
) -> Dealt<K::Entry> {
    Dealt::new(keys.len(), Slots::cut(1 << HASH_BITS, keys.len()), threads, |row| {
        let hash = keys[row].hash() as u32;
        is_matchable(row).then(|| (hash as usize, keys[row].entry(row as u32, hash)))
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

/// Splits a slice into consecutive pieces of these lengths.
fn split<T>(slice: &mut [T], lengths: impl IntoIterator<Item = usize>) -> Vec<&mut [T]> {
    let mut rest = slice;
    lengths
        .into_iter()
        .map(|length| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(length);
            rest = after;
            piece
        })
        .collect()
}
