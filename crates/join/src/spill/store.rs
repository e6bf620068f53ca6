//! Where partitions go when memory is spent.

use std::fmt;

use arrow::array::RecordBatch;

use crate::error::Result;
use crate::spec::Side;

/// Files that take batches of one side of a join in order and give them back in that order.
pub trait SpillStore: fmt::Debug + Send + Sync {
    /// A file under construction; it goes away when dropped.
    type Writer: Send;
    /// A complete file; it goes away when the last clone is dropped.
    type File: Clone + Send + Sync;

    /// Starts a file for batches of one side.
    fn create(&self, side: Side) -> Result<Self::Writer>;
    /// Appends a batch.
    fn append(&self, writer: &mut Self::Writer, batch: &RecordBatch) -> Result<()>;
    /// Completes a file.
    fn finish(&self, writer: Self::Writer) -> Result<Self::File>;
}

/// How a spilling join divides the memory it has.
#[derive(Debug, Clone, Copy)]
pub struct SpillTuning {
    /// Whether it may spill at all.
    pub enabled: bool,
    /// The most partitions of one pass, a power of two.
    pub max_fanout: usize,
    /// How often a partition may be partitioned again.
    pub max_depth: usize,
    /// How many streams probe one build side.
    pub probers: usize,
}

/// The least memory with which a spilling join works, in bytes, for rows of few columns.
pub const MIN_FLOOR: usize = 256 * 1024;

/// Stages are never larger than this: beyond it, writes gain nothing.
const MAX_STAGE: usize = 16 * 1024 * 1024;

/// The part of the memory at hand that becomes the stage.
const STAGE_SHARE: usize = 24;

/// What a batch of one column costs in a file besides its values.
const COLUMN_OVERHEAD: usize = 128;

/// The bytes of a write that is worth its system calls and its headers.
const GOOD_WRITE: usize = 64 * 1024;

/// Fewer partitions than this make a build side that is a few times too large need several levels.
const MIN_FANOUT: usize = 16;

impl SpillTuning {
    /// The floor for rows of so many columns, in bytes: a stage, the copy of it that is written, and as much again for
    /// a chunk of a partition read back.
    pub fn floor(columns: usize) -> usize {
        MIN_FLOOR.max(8 * Self::min_stage(columns))
    }

    /// The bytes of rows to collect before they are written out by partition, given the memory at hand.
    pub(crate) fn stage(&self, columns: usize, memory: usize) -> usize {
        (memory / STAGE_SHARE).clamp(Self::min_stage(columns), MAX_STAGE.max(Self::min_stage(columns)))
    }

    /// The stage of each stream that probes, where the build side had one of `stage` bytes: they share its memory.
    pub(crate) fn probe_stage(&self, columns: usize, stage: usize) -> usize {
        (stage / self.probers.max(1)).max(Self::min_stage(columns))
    }

    /// What a stage takes with the copies of rows on their way out of it.
    pub(crate) fn buffers(&self, stage: usize) -> usize {
        stage + stage / 2
    }

    /// The number of partitions that a stage of this size can feed with writes of a sensible size.
    pub(crate) fn fanout(&self, columns: usize, stage: usize) -> usize {
        let write = GOOD_WRITE.max(2 * COLUMN_OVERHEAD * columns);
        let fanout = (stage / write).next_power_of_two();
        fanout.clamp(MIN_FANOUT.min(self.max_fanout), self.max_fanout)
    }

    fn min_stage(columns: usize) -> usize {
        (32 * 1024).max(8 * COLUMN_OVERHEAD * columns)
    }
}
