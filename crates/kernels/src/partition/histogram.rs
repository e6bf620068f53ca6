//! Histograms of keys, counted by the CPU so that keys cross the link only once (paper 1, section 6.2.8).
//!
//! If a kernel counts keys in CPU memory, it reads them across the link, and the partitioner then reads them again. The CPU
//! reads its own memory, usually faster than a link, and leaves the GPU to other work meanwhile. Only the counts are sent to
//! the GPU, 8 bytes per block and partition.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use overspill_machine::driver::Device;
use overspill_machine::memory::{HostBuffer, Plain, View};
use overspill_machine::vectors::{VectorLoop, Vectors, with_widest_vectors};
use overspill_machine::{Error, Result};

use super::plan::{KeyWidth, PartitionPlan};
use crate::hash::MAX_BITS;
use crate::{HashFunction, Radix};

/// Counters per partition, which keys use in turn. An increment waits for the preceding increment of the same counter (paper
/// 1, section 6.1), which is frequent with skewed keys. With more counters, large fanouts would not fit the first-level
/// cache.
const LANES: usize = 2;

/// Keys hashed together: the lanes of an AVX2 vector. With more, the compiler hashes each key by itself.
const TOGETHER: usize = 4;

/// The largest fanout of a [`Radix`]. An index masked by it needs no bounds check.
const MOST_FANOUT: usize = 1 << MAX_BITS;

/// Parts of the keys per thread, so that a delayed thread does not delay the others.
const PARTS_PER_THREAD: usize = 4;

/// The maximum number of keys in a part, as a thread counts in 32 bits.
const MOST_KEYS: usize = 1 << 28;

/// The number of keys of each block's chunk in each partition, counted by the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
}

impl Histogram {
    /// Counts all keys of a column as one chunk, on `threads` threads.
    pub fn of_column<Key: Plain + Copy + Into<u64> + Sync>(keys: &[Key], radix: Radix, threads: usize) -> Self {
        Self { counts: count(keys, radix, 1, keys.len(), threads) }
    }

    /// Counts the keys that a plan partitions, on `threads` threads.
    ///
    /// # Errors
    /// If the number or the width of the keys differs from the plan's.
    pub fn of_plan<Key: Plain + Copy + Into<u64> + Sync>(
        plan: &PartitionPlan,
        keys: &[Key],
        threads: usize,
    ) -> Result<Self> {
        if KeyWidth::of::<Key>()? != plan.key || keys.len() as u64 != plan.tuples {
            return Err(Error::Invalid(format!(
                "{} keys of {} bytes to count, planned for {} of {}",
                keys.len(),
                size_of::<Key>(),
                plan.tuples,
                plan.key.bytes()
            )));
        }
        let chunk = usize::try_from(plan.chunk).map_err(|_| Error::Invalid(format!("a chunk of {}", plan.chunk)))?;
        Ok(Self { counts: count(keys, plan.radix, plan.blocks as usize, chunk, threads) })
    }

    /// The counts in the kernel's order: all blocks of the first partition, then of the second, and so on.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }
}

/// Keys in CPU memory that the CPU has counted for a plan.
///
/// It borrows the keys, so that they cannot change before they are partitioned. With the counts of other keys, tuples would
/// be written outside of their partitions.
#[derive(Debug)]
pub struct CountedKeys<'a> {
    pub(super) keys: View<'a>,
    pub(super) plan: PartitionPlan,
    pub(super) histogram: Histogram,
    /// The device that the address of the keys belongs to.
    pub(super) device: usize,
}

impl<'a> CountedKeys<'a> {
    /// Counts the first `plan.tuples` keys of a buffer on `threads` threads. Enqueues no work on the device.
    ///
    /// # Errors
    /// If the buffer holds fewer keys, or the device cannot read it.
    pub fn new(device: &Device, plan: &PartitionPlan, keys: &'a HostBuffer, threads: usize) -> Result<Self> {
        let view = keys.view(device)?.slice(0, plan.tuples * plan.key.bytes())?;
        let tuples = usize::try_from(plan.tuples).map_err(|_| Error::Invalid(format!("{} keys", plan.tuples)))?;
        let histogram = match plan.key {
            KeyWidth::Four => Histogram::of_plan(plan, &keys.as_slice::<u32>()[..tuples], threads)?,
            KeyWidth::Eight => Histogram::of_plan(plan, &keys.as_slice::<u64>()[..tuples], threads)?,
        };
        Ok(Self { keys: view, plan: plan.clone(), histogram, device: device.ordinal() })
    }

    /// The plan that the keys were counted for.
    pub fn plan(&self) -> &PartitionPlan {
        &self.plan
    }

    /// Bytes of the counts, which are sent to the GPU.
    pub fn count_bytes(&self) -> u64 {
        size_of_val(self.histogram.counts()) as u64
    }
}

/// Counts `blocks` chunks of keys by partition. Threads take one part of the keys after another; parts are independent of
/// chunks.
fn count<Key: Copy + Into<u64> + Sync>(
    keys: &[Key],
    radix: Radix,
    blocks: usize,
    chunk: usize,
    threads: usize,
) -> Vec<u64> {
    let fanout = radix.fanout() as usize;
    let counts: Vec<AtomicU64> = (0..fanout * blocks).map(|_| AtomicU64::new(0)).collect();
    let part = keys.len().div_ceil(threads.max(1) * PARTS_PER_THREAD).clamp(1, MOST_KEYS);
    let parts = keys.len().div_ceil(part);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut counters = vec![[0; LANES]; MOST_FANOUT];
        loop {
            let begin = next.fetch_add(1, Ordering::Relaxed).saturating_mul(part);
            let end = keys.len().min(begin.saturating_add(part));
            let mut at = begin;
            while at < end {
                let block = at / chunk;
                let stop = end.min((block + 1) * chunk);
                with_widest_vectors(Count { keys: &keys[at..stop], radix, counters: &mut counters });
                for (partition, counters) in counters[..fanout].iter_mut().enumerate() {
                    let sum: u64 = std::mem::take(counters).into_iter().map(u64::from).sum();
                    // Relaxed ordering suffices, as all threads are joined before the counts are read.
                    counts[partition * blocks + block].fetch_add(sum, Ordering::Relaxed);
                }
                at = stop;
            }
            if begin >= keys.len() {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(parts) {
            scope.spawn(work);
        }
        work();
    });
    counts.into_iter().map(AtomicU64::into_inner).collect()
}

/// Adds keys to the counters of their partitions.
struct Count<'a, Key> {
    keys: &'a [Key],
    radix: Radix,
    /// The counters of the largest fanout.
    counters: &'a mut [[u32; LANES]],
}

impl<Key: Copy + Into<u64>> VectorLoop for Count<'_, Key> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Vectors) {
        // Specializes the loop for each hash function.
        match self.radix.hash_function() {
            hash @ HashFunction::MultiplyShift => self.with(hash),
            hash @ HashFunction::Murmur3 => self.with(hash),
            hash @ HashFunction::Identity => self.with(hash),
        }
    }
}

impl<Key: Copy + Into<u64>> Count<'_, Key> {
    #[inline(always)]
    fn with(self, hash: HashFunction) {
        let (bits, shift, smallest) = (self.radix.bits(), self.radix.shift(), self.radix.smallest());
        let Ok(counters) = <&mut [[u32; LANES]; MOST_FANOUT]>::try_from(self.counters) else {
            unreachable!("counters of the most partitions")
        };
        let hash = |key: Key| hash.hash(key.into().wrapping_sub(smallest));
        let partition = |key: Key| ((hash(key) << shift) >> (64 - bits)) as usize % MOST_FANOUT;
        let (together, rest) = self.keys.as_chunks::<TOGETHER>();
        for keys in together {
            for (place, partition) in keys.map(partition).into_iter().enumerate() {
                counters[partition][place % LANES] += 1;
            }
        }
        for key in rest {
            counters[partition(*key)][0] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use overspill_machine::vectors::Baseline;

    use super::*;

    /// The n-th key. Three in five keys are equal.
    fn key(number: u64) -> u64 {
        if number % 5 < 3 { 7 } else { HashFunction::Murmur3.hash(number) }
    }

    fn counted(keys: &[u64], radix: Radix, blocks: usize, chunk: usize) -> Vec<u64> {
        let mut counts = vec![0; radix.fanout() as usize * blocks];
        for (place, key) in keys.iter().enumerate() {
            counts[radix.partition(*key) as usize * blocks + place / chunk] += 1;
        }
        counts
    }

    #[test]
    fn keys_are_counted_by_chunk_and_partition_on_any_number_of_threads() {
        for length in [0, 1, 3, 4, 31, 32, 33, 10_007] {
            let wide: Vec<u64> = (0..length).map(key).collect();
            let narrow: Vec<u32> = wide.iter().map(|key| *key as u32).collect();
            let widened: Vec<u64> = narrow.iter().map(|key| u64::from(*key)).collect();
            for hash in [HashFunction::MultiplyShift, HashFunction::Murmur3] {
                for (bits, shift) in [(1, 0), (5, 9), (10, 54), (12, 0)] {
                    let radix = Radix::new(bits, shift, hash).unwrap();
                    // Includes chunks that end within a group of keys hashed together, and blocks without keys.
                    for (blocks, chunk) in [(1, 10_016), (3, 3_360), (400, 32), (5, 2_047)] {
                        if (length as usize) > blocks * chunk {
                            continue;
                        }
                        for threads in [1, 3, 16] {
                            let case =
                                format!("{length} keys, {radix:?}, {blocks} chunks of {chunk}, {threads} threads");
                            let counts = count(&wide, radix, blocks, chunk, threads);
                            assert!(counts == counted(&wide, radix, blocks, chunk), "{case}");
                            let counts = count(&narrow, radix, blocks, chunk, threads);
                            assert!(counts == counted(&widened, radix, blocks, chunk), "{case}, 4 bytes each");
                        }
                    }
                    let column = Histogram::of_column(&wide, radix, 3);
                    assert!(column.counts() == counted(&wide, radix, 1, usize::MAX), "{length} keys, {radix:?}");
                }
            }
            let radix = Radix::in_key_order(11, 7, 1 << 60).unwrap();
            let counts = count(&wide, radix, 3, 3_360, 2);
            assert!(counts == counted(&wide, radix, 3, 3_360), "{length} keys in key order");
        }
    }

    #[test]
    fn all_vectors_count_alike() {
        let keys: Vec<u64> = (0..1003).map(key).collect();
        for hash in [HashFunction::MultiplyShift, HashFunction::Murmur3] {
            let radix = Radix::new(6, 3, hash).unwrap();
            let [mut baseline, mut widest] = [(); 2].map(|()| vec![[0; LANES]; MOST_FANOUT]);
            Count { keys: &keys, radix, counters: &mut baseline }.run(Baseline);
            with_widest_vectors(Count { keys: &keys, radix, counters: &mut widest });
            assert!(baseline == widest && baseline.as_flattened().iter().sum::<u32>() == 1003, "{hash:?}");
        }
    }
}
