//! Deals rows out to partitions, on several threads.

use super::payload_rows::PayloadRows;
use crate::error::Result;
use crate::keys::Word;
use crate::parallel::{in_parallel, ranges};

/// The bits of the hash that rows are dealt out by: the lower half, as the upper bits have been used to partition what
/// was spilled.
pub(super) const HASH_BITS: u32 = 32;

/// Rows of a partition: what is done to one of them then stays in the second-level cache.
const ROWS_PER_PARTITION: usize = 32 << 10;
/// A thread writes to so many places at once without missing the TLB or the cache at each.
const MAX_PARTITIONS: usize = 512;

/// How slots are cut into partitions: by their upper bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    /// How many there are.
    partitions: usize,
    /// The slots of a partition are two to the power of this.
    shift: u32,
    /// All slots.
    pub count: usize,
}

impl Slots {
    /// Cuts `count` slots, that `rows` rows spread over.
    pub fn cut(count: usize, rows: usize) -> Self {
        let wanted = (rows / ROWS_PER_PARTITION).clamp(1, MAX_PARTITIONS);
        let shift = count.div_ceil(wanted).next_power_of_two().ilog2();
        Self { partitions: count.div_ceil(1 << shift).max(1), shift, count }
    }

    /// The same partitions of fewer slots: those that differ in the last so many bits are one.
    fn merged(self, bits: u32) -> Self {
        Self { partitions: self.partitions, shift: self.shift - bits, count: self.count.div_ceil(1 << bits) }
    }

    fn partition(self, slot: usize) -> usize {
        slot >> self.shift
    }

    fn no_items(self) -> Vec<usize> {
        vec![0; self.partitions]
    }

    /// How many slots each partition has.
    fn lengths(self) -> impl Iterator<Item = usize> {
        let length = 1usize << self.shift;
        (0..self.partitions).map(move |partition| length.min(self.count - (partition << self.shift).min(self.count)))
    }
}

/// Room for so many items of each partition, and no more.
fn hand_of<T>(counts: Vec<usize>) -> Vec<Vec<T>> {
    counts.into_iter().map(Vec::with_capacity).collect()
}

/// What was dealt out.
#[derive(Debug)]
pub(super) struct Dealt<T> {
    /// By thread, and then by partition.
    hands: Vec<Vec<Vec<T>>>,
    slots: Slots,
    threads: usize,
}

impl<T: Copy + Send + Sync> Dealt<T> {
    /// Deals out what `item` makes of each row: a slot, and what goes to its partition. `None` leaves the row out.
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

    /// The same for rows in chunks, by their keys and payloads.
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

    /// Sorts the items by slot, partitions side by side: leaves in `starts`, which has a place more than there are
    /// slots and is zeroed, where each slot starts, and in `sorted` what `output_of` makes of the items. Those of a
    /// slot keep the order of their rows, until `finish` is called with them. Slots that differ in the last
    /// `merged_bits` bits are one.
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
            // Each slot starts where the one before has come to when all items are in their places.
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

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.hands.iter().flatten().map(Vec::len).sum()
    }

    /// How many items each partition has.
    pub fn counts(&self) -> impl Iterator<Item = usize> {
        (0..self.slots.partitions).map(|partition| self.hands.iter().map(|hand| hand[partition].len()).sum())
    }

    /// On how many threads they were dealt out.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The items of a partition, in the order of their rows, in the pieces that they were dealt out in.
    pub fn hands(&self, partition: usize) -> impl Iterator<Item = &[T]> {
        self.hands.iter().map(move |hand| &hand[partition][..])
    }

    /// The items of a partition, in the order of their rows.
    fn items(&self, partition: usize) -> impl Iterator<Item = T> {
        self.hands(partition).flatten().copied()
    }
}

/// Deals the rows for which `is_matchable` holds out by the hashes of their keys, as entries of key and row.
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

/// What is sorted of a partition.
struct Piece<'a, O> {
    partition: usize,
    /// How many items the partitions before have.
    base: u32,
    ends: &'a mut [u32],
    sorted: &'a mut [O],
}

/// Cuts a slice into consecutive pieces of these lengths.
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
