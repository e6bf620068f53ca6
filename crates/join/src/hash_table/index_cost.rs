//! What it costs to index build rows.

use arrow::array::RecordBatch;

use super::join_table::JoinTable;
use super::visited::VisitedRows;
use crate::memory::column_bytes;
use crate::spec::JoinSpec;

/// The memory that build rows need besides themselves to become a hash table.
///
/// It is paid with the rows, batch by batch, so that a build side that has been read can always be indexed.
#[derive(Debug, Clone, Copy)]
pub struct IndexCost {
    row_bytes: usize,
}

/// Rows over which the cost of the bitmap of visited rows comes out even.
const BITMAP_ROWS: usize = 64;

impl IndexCost {
    /// The cost for the build side of a join.
    pub fn new(spec: &JoinSpec) -> Self {
        let visited = if spec.join_type.emits_build_at_end() { VisitedRows::bytes(BITMAP_ROWS) } else { 0 };
        Self { row_bytes: JoinTable::row_bytes(&spec.codec) + visited.div_ceil(BITMAP_ROWS) }
    }

    /// The bytes for the rows of a batch, whose keys take `key_bytes` besides the entries of the table.
    ///
    /// Before the table is made the batches are concatenated, a column after the other, so that the largest column
    /// exists twice for a while.
    pub fn of(self, batch: &RecordBatch, key_bytes: usize) -> usize {
        let copied = batch.columns().iter().map(column_bytes).max().unwrap_or(0);
        copied.max(batch.num_rows() * self.row_bytes + key_bytes)
    }
}
