//! How the passes of a join are cut to a GPU's memory.

use overspill_kernels::{HashFunction, PartitionedJoin, Radix};
use overspill_machine::{Error, Result};

use super::fine::LINE_TUPLES;
use crate::device::{Gpu, KEY};

/// Bits of the first pass, at least and at most: a pass of more would flush buffers that are too short.
const FIRST_BITS: std::ops::RangeInclusive<u32> = 1..=10;

/// Bits of the second pass.
const SECOND_BITS: std::ops::RangeInclusive<u32> = 1..=11;

/// The most tuples by which the start of a partition is moved to where a line and a buffer start.
const ALIGNMENT: u64 = 256;

/// A key and a value of up to 8 bytes.
const TUPLE: u64 = 16;

/// Bytes of the scratchpad that a partitioner has for each partition besides its buffer of two tuples.
const PARTITION_STATE: u64 = 16;

/// Partitions are on average half as large as what fits the scratchpad, so that few are larger.
const FILL: u64 = 2;

/// Fewer tuples are not worth a launch.
const FEWEST_TUPLES: u64 = 1024;

/// The hash whose bits the passes take, one after the other.
const HASH: HashFunction = HashFunction::Murmur3;

/// How a build side, and every chunk that is joined with it, is partitioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RadixPlan {
    /// The first pass.
    pub(crate) first: Radix,
    /// The most tuples of a side that the second pass takes at once: so many that two pairs of partitions fit GPU memory, one
    /// that is joined and one that is being partitioned, beside the pairs of rows that are found.
    pub(crate) piece: u64,
    /// The same of the probe side, whose partitions need not fit the scratchpad.
    pub(crate) probe_piece: u64,
    /// The most pairs that are found at once.
    pub(super) pairs: u64,
    /// Tuples of the build side that fit the scratchpad.
    scratchpad: u64,
    /// The most bits of the second pass.
    second_bits: u32,
}

impl RadixPlan {
    /// For a build side of so many tuples.
    ///
    /// # Errors
    /// If GPU memory is too small.
    pub(crate) fn new(gpu: &Gpu, tuples: u64) -> Result<Self> {
        let first = Radix::new(*FIRST_BITS.start(), 0, HASH)?;
        let scratchpad: u64 = PartitionedJoin::new(gpu.kernels(), KEY, first)?.capacity().into();
        // Sizes are rounded up when memory is asked for.
        let workspace = gpu.workspace() / 8 * 7;
        // Partitions need a buffer each in the scratchpad.
        let buffers = gpu.device().properties().scratchpad_per_block / (2 * TUPLE + PARTITION_STATE);
        let second_bits = *SECOND_BITS.start()..=(*SECOND_BITS.end()).min(buffers.max(2).ilog2());
        // Both sides of a pair that has been partitioned and of one that is being, and what the latter is made from; a quarter is
        // for pairs of rows, an eighth for counters of all kinds.
        let (tuples_room, sides) = (workspace / 8 * 5, 4);
        let padding = |bits: u32| sides * (1 << bits) * ALIGNMENT * TUPLE;
        // No more than two passes make small enough. A third is not needed: with its most bits, the first makes such pieces of
        // 5 billion tuples, 85 GB of them.
        let most = (1 << *second_bits.end()) * (scratchpad / FILL);
        let fullest = |bits: u32| tuples_room.saturating_sub(padding(bits)) / ((sides + 1) * TUPLE);
        let parts = |piece: u64| piece.min(most).min(tuples).div_ceil((scratchpad / FILL).max(1));
        let bits_for = |piece: u64| bits_of(parts(piece), second_bits.clone());
        // Partitions of fewer bits lose less by their alignment, which leaves room for more tuples.
        let bits = bits_for(fullest(*SECOND_BITS.start()));
        // Pieces begin where lines do: what is planned to be one piece must be one.
        let whole_lines = |tuples: u64| tuples / LINE_TUPLES * LINE_TUPLES;
        let probe_piece = whole_lines(fullest(bits));
        let piece = whole_lines(probe_piece.min(most));
        if piece < FEWEST_TUPLES {
            return Err(Error::TooSmall {
                what: "the second pass of a partitioned join",
                needed: (FEWEST_TUPLES * (sides + 1) * TUPLE + padding(bits)) * 8 / 5,
                of: "the half of GPU memory that joins work in",
                available: workspace,
            });
        }
        // Of a hash that is even, few partitions are much larger than the average.
        let first = Radix::new(bits_of((tuples + tuples / 4).div_ceil(piece), FIRST_BITS), 0, HASH)?;
        let pairs = workspace / 4 / TUPLE;
        Ok(Self { first, piece, probe_piece, pairs, scratchpad, second_bits: *second_bits.end() })
    }

    /// The second pass over a piece of the build side, and what is joined with it.
    pub(super) fn second(&self, tuples: u64) -> Result<Radix> {
        let range = *SECOND_BITS.start()..=self.second_bits;
        let bits = bits_of(tuples.div_ceil((self.scratchpad / FILL).max(1)), range);
        Radix::new(bits, self.first.bits(), HASH)
    }

    /// Tuples of a chunk of the probe side whose partitions, unless they are skewed, are taken whole.
    pub(crate) fn chunk_tuples(&self) -> u64 {
        (self.probe_piece * u64::from(self.first.fanout()) / 4).saturating_mul(3)
    }
}

/// So many bits that there are at least `parts` parts, as far as the range goes.
fn bits_of(parts: u64, range: std::ops::RangeInclusive<u32>) -> u32 {
    parts.max(1).checked_next_power_of_two().map_or(u64::BITS, u64::ilog2).clamp(*range.start(), *range.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_as_many_as_parts_need_within_their_range() {
        assert_eq!(bits_of(0, 1..=10), 1);
        assert_eq!(bits_of(2, 1..=10), 1);
        assert_eq!(bits_of(3, 1..=10), 2);
        assert_eq!(bits_of(1 << 10, 1..=10), 10);
        assert_eq!(bits_of((1 << 10) + 1, 1..=10), 10);
        assert_eq!(bits_of(u64::MAX, 1..=10), 10);
    }
}
