//! Lookups in the order of the index.

use std::ops::Range;

use overspill_index::{Index, SortedKeys};

use crate::error::Result;
use crate::radix::{PartitionCursor, PartitionMethod, RadixPartitioner};

/// Bits of a key that partitions are chosen by, at most (paper 3, section 4.3).
const BITS: u32 = 11;

/// Lowest bits of a key that no partition is chosen by: keys that differ in them alone are seldom in different pages.
const IGNORED_BITS: u32 = 4;

/// Number of keys that are read from a partition at once.
const TOGETHER: usize = 1024;

/// A tumbling window over keys to look up (paper 3, section 5): when it is closed, its keys are partitioned by the bits that decide
/// the way through the index, and looked up partition by partition.
///
/// Keys of a partition read the same few pages of an index, so that these are translated and cached once. Neither side is
/// materialized: a window ends when it is full.
#[derive(Debug)]
pub struct Window {
    /// Keys, and their numbers in the window.
    partitioner: RadixPartitioner<2>,
    bits: KeyBits,
    places: Vec<Range<usize>>,
}

/// The bits of keys that partitions are chosen by.
#[derive(Debug, Clone, Copy)]
struct KeyBits {
    smallest: u64,
    largest: u64,
    shift: u32,
}

impl KeyBits {
    /// From the highest bit of the distance between the smallest and the largest key, which splits the root of a tree, downwards.
    fn of(keys: &SortedKeys) -> Self {
        let (smallest, largest) = (keys.first().copied().unwrap_or(0), keys.last().copied().unwrap_or(0));
        let differing = u64::BITS - (largest - smallest).leading_zeros();
        Self { smallest, largest, shift: differing.saturating_sub(BITS).max(IGNORED_BITS) }
    }

    /// Keys beyond those of the index go with the nearest.
    fn partition(self, key: u64) -> usize {
        ((key.clamp(self.smallest, self.largest) - self.smallest) >> self.shift) as usize
    }

    fn fanout(self) -> usize {
        self.partition(self.largest) + 1
    }
}

impl Window {
    /// Creates a window for lookups in `keys`.
    ///
    /// # Errors
    /// If the system does not provide the memory.
    pub fn new(keys: &SortedKeys) -> Result<Self> {
        let partitioner = RadixPartitioner::new(PartitionMethod::WriteCombining)?;
        Ok(Self { partitioner, bits: KeyBits::of(keys), places: Vec::new() })
    }

    /// Looks up the keys of one window. Passes on the numbers of some of its keys with the places that
    /// [`Index::look_up`] finds for them, until it has done so for each.
    ///
    /// # Errors
    /// If the system does not provide the memory.
    pub fn look_up(
        &mut self,
        index: &Index,
        keys: &[u64],
        mut found: impl FnMut(&[u64], &[Range<usize>]),
    ) -> Result<()> {
        let (bits, fanout) = (self.bits, self.bits.fanout());
        self.partitioner.begin(fanout, keys.len())?;
        let mut numbers = [0; TOGETHER];
        for (part, keys) in keys.chunks(TOGETHER).enumerate() {
            let numbers = &mut numbers[..keys.len()];
            numbers.iter_mut().zip(part as u64 * TOGETHER as u64..).for_each(|(place, number)| *place = number);
            self.partitioner.push([keys, numbers], |key| bits.partition(key));
        }
        self.partitioner.finish();
        let mut partition_keys = [0; TOGETHER];
        for partition in 0..fanout {
            let mut cursor = PartitionCursor::new(&self.partitioner, partition);
            loop {
                match self.partitioner.read(&mut cursor, [&mut partition_keys, &mut numbers]) {
                    0 => break,
                    count => {
                        index.look_up(&partition_keys[..count], &mut self.places);
                        found(&numbers[..count], &self.places);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overspill_index::IndexKind;

    use super::*;

    fn index(keys: &[u64]) -> Index {
        let sorted = SortedKeys::write(keys.len(), |places| places.copy_from_slice(keys)).unwrap();
        Index::build(IndexKind::RadixSpline, Arc::new(sorted)).unwrap()
    }

    /// Keys in an order that has nothing to do with theirs.
    fn shuffled(count: u64, of: impl Fn(u64) -> u64) -> Vec<u64> {
        (0..count).map(|number| of(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40)).collect()
    }

    #[test]
    fn windows_find_what_plain_lookups_find() {
        let wide: Vec<u64> = (0..100_000).map(|place| place * 0x2B3C_4D5E_6F70).collect();
        let cases = [
            (wide.clone(), shuffled(70_000, |number| wide[number as usize % wide.len()] + number % 2)),
            ((0..5_000).collect(), shuffled(20_000, |number| number % 6_000)),
            (vec![7; 300], shuffled(3_000, |number| number % 15)),
            (vec![u64::MAX], vec![0, u64::MAX, 1]),
            (vec![], vec![0, 5, u64::MAX]),
            (wide.clone(), vec![]),
        ];
        for (keys, probes) in cases {
            let index = index(&keys);
            let mut expected = Vec::new();
            index.look_up(&probes, &mut expected);
            let mut window = Window::new(index.keys()).unwrap();
            // A window is used again and again, and the last is not full.
            let mut all = vec![None; probes.len()];
            let mut first = 0;
            for probes in probes.chunks(32_000) {
                window
                    .look_up(&index, probes, |numbers, places| {
                        for (number, place) in numbers.iter().zip(places) {
                            let before = all[first + *number as usize].replace(place.clone());
                            assert_eq!(before, None, "of {} keys", keys.len());
                        }
                    })
                    .unwrap();
                first += probes.len();
            }
            assert_eq!(all.into_iter().collect::<Option<Vec<_>>>(), Some(expected), "of {} keys", keys.len());
        }
    }

    #[test]
    fn keys_of_a_partition_lie_side_by_side_in_the_index() {
        let keys: Vec<u64> = (0..100_000).map(|place| (1 << 60) + place * 1000).collect();
        let index = index(&keys);
        let mut window = Window::new(index.keys()).unwrap();
        let probes = shuffled(50_000, |number| keys[number as usize % keys.len()]);
        let mut places = Vec::new();
        window.look_up(&index, &probes, |_, found| places.extend(found.iter().map(|place| place.start))).unwrap();
        // Far less than at random, where two are a third of all places apart on average.
        let apart: usize = places.windows(2).map(|pair| pair[0].abs_diff(pair[1])).sum();
        assert!(apart / places.len() < keys.len() / 1000, "{}", apart / places.len());
    }
}
