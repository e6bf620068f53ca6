//! Plans the passes of a join to fit a GPU's memory.

use overspill_kernels::{HashFunction, PartitionedJoin, Radix};
use overspill_machine::{Error, Result};

use super::fine::LINE_TUPLES;
use crate::device::{Gpu, KEY};

/// Minimum and maximum bits of the first pass. A pass with more bits would flush buffers that are too short.
const FIRST_BITS: std::ops::RangeInclusive<u32> = 1..=10;

/// Minimum and maximum bits of the second pass.
const SECOND_BITS: std::ops::RangeInclusive<u32> = 1..=11;

/// Maximum bits of the second pass while the first pass has bits left. The more partitions there are, the shorter are their
/// buffers in the scratchpad: an H100 partitions 324 GB/s into 512 partitions within its memory, but 60 GB/s into 2048.
const FAST_SECOND_BITS: u32 = 9;

/// Maximum number of tuples that are skipped to move the start of a partition to the start of a line and of a buffer.
const ALIGNMENT: u64 = 256;

/// Maximum bytes per tuple: a key and a value of up to 8 bytes.
const TUPLE: u64 = 16;

/// Bytes of scratchpad that a partitioner needs per partition, besides its buffer of two tuples.
const PARTITION_STATE: u64 = 16;

/// Partitions are on average half as large as fits the scratchpad, so that few are larger.
const FILL: u64 = 2;

/// Minimum number of tuples per piece. Fewer are not worth a launch.
const FEWEST_TUPLES: u64 = 1024;

/// The hash function of the passes. Each pass uses the bits after those of the previous pass.
const HASH: HashFunction = HashFunction::Murmur3;

/// How a build side, and every chunk joined with it, is partitioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RadixPlan {
    pub(crate) first: Radix,
    /// Maximum number of tuples of a side that the second pass processes at once. Chosen so that GPU memory holds two pairs of
    /// partitions, one being joined and one being partitioned, beside the pairs of rows that are found.
    pub(crate) piece: u64,
    /// The same for the probe side, whose partitions need not fit the scratchpad.
    pub(crate) probe_piece: u64,
    /// Maximum number of pairs found at once.
    pub(super) pairs: u64,
    /// Number of build tuples that fit the scratchpad.
    scratchpad: u64,
    /// Maximum bits of the second pass.
    second_bits: u32,
}

impl RadixPlan {
    /// Creates the plan for a build side of `tuples` tuples. In GPU memory a pass has room for `inputs` times the tuples that it partitions.
    ///
    /// # Errors
    /// If GPU memory is too small.
    pub(crate) fn new(gpu: &Gpu, tuples: u64, inputs: u64) -> Result<Self> {
        let first = Radix::new(*FIRST_BITS.start(), 0, HASH)?;
        let scratchpad: u64 = PartitionedJoin::new(&gpu.kernels, KEY, first)?.capacity().into();
        // Leave an eighth, as allocation sizes are rounded up.
        let workspace = gpu.workspace() / 8 * 7;
        // Each partition needs a buffer in the scratchpad.
        let buffers = gpu.device().properties().scratchpad_per_block / (2 * TUPLE + PARTITION_STATE);
        // Returns the maximum number of tuples that a second pass with `bits` bits cuts into partitions that fit the scratchpad.
        let most_of = |bits: u32| (1 << bits) * (scratchpad / FILL).max(1);
        // Add a quarter: with an even hash, few partitions are much larger than the average.
        let spread = tuples + tuples / 4;
        let slow = FAST_SECOND_BITS..*SECOND_BITS.end();
        let is_enough = |bits: &u32| spread.div_ceil(most_of(*bits)) <= 1 << FIRST_BITS.end();
        let last = slow.clone().find(is_enough).unwrap_or(slow.end);
        let second_bits = *SECOND_BITS.start()..=last.min(buffers.max(2).ilog2());
        // Memory for tuples holds both sides of a partitioned pair, both sides of the pair being partitioned, and the input of
        // the latter. A quarter of the workspace is for pairs of rows, and an eighth for counters of all kinds.
        let (tuples_room, sides) = (workspace / 8 * 5, 4);
        let padding = |bits: u32| sides * (1 << bits) * ALIGNMENT * TUPLE;
        // A third pass is not needed: with the maximum bits of both, the first pass cuts 5 billion tuples (85 GB) into pieces of
        // this size.
        let most = most_of(*second_bits.end());
        let fullest = |bits: u32| tuples_room.saturating_sub(padding(bits)) / ((sides + inputs) * TUPLE);
        let parts = |piece: u64| piece.min(most).min(tuples).div_ceil((scratchpad / FILL).max(1));
        let bits_for = |piece: u64| bits_of(parts(piece), second_bits.clone());
        // A pass with fewer bits loses less memory to alignment, which leaves room for more tuples.
        let bits = bits_for(fullest(*SECOND_BITS.start()));
        // Pieces start at a line, so round down to whole lines: a partition planned as one piece must be one piece.
        let whole_lines = |tuples: u64| tuples / LINE_TUPLES * LINE_TUPLES;
        let probe_piece = whole_lines(fullest(bits));
        let piece = whole_lines(probe_piece.min(most));
        if piece < FEWEST_TUPLES {
            return Err(Error::TooSmall {
                what: "the second pass of a partitioned join",
                needed: (FEWEST_TUPLES * (sides + inputs) * TUPLE + padding(bits)) * 8 / 5,
                of: "the half of GPU memory that joins work in",
                available: workspace,
            });
        }
        let first = Radix::new(bits_of(spread.div_ceil(piece), FIRST_BITS), 0, HASH)?;
        let pairs = workspace / 4 / TUPLE;
        Ok(Self { first, piece, probe_piece, pairs, scratchpad, second_bits: *second_bits.end() })
    }

    /// The second pass over a piece of `tuples` build tuples, and over the probe tuples joined with it.
    pub(super) fn second(&self, tuples: u64) -> Result<Radix> {
        let range = *SECOND_BITS.start()..=self.second_bits;
        let bits = bits_of(tuples.div_ceil((self.scratchpad / FILL).max(1)), range);
        Radix::new(bits, self.first.bits(), HASH)
    }

    /// Number of tuples in a probe chunk whose partitions, unless skewed, are processed whole.
    pub(crate) fn chunk_tuples(&self) -> u64 {
        (self.probe_piece * u64::from(self.first.fanout()) / 4).saturating_mul(3)
    }
}

/// Returns the number of bits for at least `parts` parts, clamped to the range.
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
