//! Storage for partitions that do not fit in memory.

use std::fmt;

use arrow::array::RecordBatch;

use crate::error::Result;
use crate::spec::Side;

/// Files that store batches of one side of a join and return them in the same order.
pub trait SpillStore: fmt::Debug + Send + Sync {
    /// A file that is being written; dropping it deletes the file.
    type Writer: Send;
    /// A complete file; dropping the last clone deletes the file.
    type File: Clone + Send + Sync;

    /// Starts a file for batches of one side.
    fn create(&self, side: Side) -> Result<Self::Writer>;
    /// Appends a batch.
    fn append(&self, writer: &mut Self::Writer, batch: &RecordBatch) -> Result<()>;
    /// Completes a file.
    fn finish(&self, writer: Self::Writer) -> Result<Self::File>;
}

/// How a spilling join divides its memory.
#[derive(Debug, Clone, Copy)]
pub struct SpillTuning {
    /// Whether the join may spill at all.
    pub enabled: bool,
    /// Maximum number of partitions in one pass, a power of two.
    pub max_fanout: usize,
    /// Maximum number of times that a partition is partitioned again.
    pub max_depth: usize,
    /// Number of streams that probe one build side.
    pub probers: usize,
}

/// Minimum memory of a spilling join, in bytes, for rows with few columns.
pub(super) const MIN_FLOOR: usize = 256 * 1024;

/// Maximum bytes of a stage: larger ones do not make writes faster.
const MAX_STAGE: usize = 16 * 1024 * 1024;

/// The stage gets one in this many parts of the available memory.
const STAGE_SHARE: usize = 24;

/// Bytes of one column of a batch in a file, besides its values.
const COLUMN_OVERHEAD: usize = 128;

/// Bytes of a write that is worth its system calls and its headers.
const GOOD_WRITE: usize = 64 * 1024;

/// With fewer partitions, a build side that is a few times too large needs several levels.
const MIN_FANOUT: usize = 16;

impl SpillTuning {
    /// The floor in bytes for rows with `columns` columns: a stage, the copy of it that is written, and as much again for a
    /// chunk of a partition that is read back.
    pub fn floor(columns: usize) -> usize {
        MIN_FLOOR.max(8 * Self::min_stage(columns))
    }

    /// Bytes of rows to collect before they are written out by partition; `memory` is the available memory in bytes.
    pub(crate) fn stage(&self, columns: usize, memory: usize) -> usize {
        (memory / STAGE_SHARE).clamp(Self::min_stage(columns), MAX_STAGE.max(Self::min_stage(columns)))
    }

    /// The stage of each probing stream, after a build side with a stage of `stage` bytes: the streams share its memory.
    pub(crate) fn probe_stage(&self, columns: usize, stage: usize) -> usize {
        (stage / self.probers.max(1)).max(Self::min_stage(columns))
    }

    /// Bytes of a stage and of the row copies made when it is written.
    pub(crate) fn buffers(&self, stage: usize) -> usize {
        stage + stage / 2
    }

    /// Number of partitions for which a stage of this size makes writes of a sensible size.
    pub(crate) fn fanout(&self, columns: usize, stage: usize) -> usize {
        let write = GOOD_WRITE.max(2 * COLUMN_OVERHEAD * columns);
        let fanout = (stage / write).next_power_of_two();
        fanout.clamp(MIN_FANOUT.min(self.max_fanout), self.max_fanout)
    }

    fn min_stage(columns: usize) -> usize {
        (32 * 1024).max(8 * COLUMN_OVERHEAD * columns)
    }
}
