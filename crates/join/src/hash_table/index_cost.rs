//! The memory cost of indexing build rows.

use arrow::array::ArrayRef;

use super::join_table::JoinTable;
use super::visited::VisitedRows;
use crate::memory::column_bytes;
use crate::spec::JoinSpec;

/// The memory that build rows need, besides the rows themselves, to be indexed in a hash table.
///
/// It is reserved with the rows, batch by batch, so that a build side that has been read can always be indexed.
#[derive(Debug, Clone, Copy)]
pub struct IndexCost {
    row_bytes: usize,
}

/// Rows for which the bitmap of visited rows has no rounding loss.
const BITMAP_ROWS: usize = 64;

impl IndexCost {
    /// The cost for the build side of a join.
    pub fn new(spec: &JoinSpec) -> Self {
        let visited = if spec.join_type.emits_build_at_end() { VisitedRows::bytes(BITMAP_ROWS) } else { 0 };
        Self { row_bytes: JoinTable::row_bytes(&spec.codec) + visited.div_ceil(BITMAP_ROWS) }
    }

    /// Bytes needed for rows of these columns. Their keys take `key_bytes` besides the columns and the entries of the table.
    ///
    /// Before the table is built the batches are concatenated, one column after the other, so that the largest column
    /// temporarily exists twice. The keys are there all the time.
    pub fn of(self, rows: usize, columns: &[ArrayRef], key_bytes: usize) -> usize {
        let copied = columns.iter().map(column_bytes).max().unwrap_or(0);
        key_bytes + copied.max(rows * self.row_bytes)
    }
}
