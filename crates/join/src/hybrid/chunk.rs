//! A build side that is joined in passes.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::build::index_bytes;
use super::build_side::BuildSide;
use crate::error::Result;
use crate::hash_table::ChainedTable;
use crate::memory::{Grant, UnitMemory, batch_bytes};
use crate::spec::JoinSpec;

/// A chunk of a build partition that hashing cannot split; each chunk is joined with the whole probe partition.
///
/// The first batch of a chunk is taken even if it exceeds the budget: without it the join could not go on.
#[derive(Debug)]
pub struct ChunkBuild {
    spec: Arc<JoinSpec>,
    batches: Vec<RecordBatch>,
    grant: Grant,
    index: Grant,
    rows: usize,
    bytes: usize,
}

impl ChunkBuild {
    /// An empty chunk.
    pub fn new(spec: Arc<JoinSpec>, memory: &Arc<UnitMemory>) -> Self {
        Self { spec, batches: Vec::new(), grant: memory.grant(), index: memory.grant(), rows: 0, bytes: 0 }
    }

    /// Adds a batch, or gives it back if there is no more room.
    pub fn push(&mut self, batch: RecordBatch) -> Option<RecordBatch> {
        let bytes = batch_bytes(&batch);
        let rows = self.rows + batch.num_rows();
        // A bound per batch: the sum of the tables of all batches is no less than the table of their sum, but for the
        // rounding up to a power of two.
        let index = 2 * index_bytes(&self.spec, [&batch].into_iter()) + bytes;
        if self.batches.is_empty() {
            self.grant.grow(bytes);
            self.index.grow(index);
        } else {
            let too_many = rows > ChainedTable::<u64>::MAX_ROWS || self.bytes + bytes > i32::MAX as usize;
            if too_many || self.grant.try_grow(bytes).is_err() {
                return Some(batch);
            }
            if self.index.try_grow(index).is_err() {
                self.grant.shrink(bytes);
                return Some(batch);
            }
        }
        self.rows = rows;
        self.bytes += bytes;
        self.batches.push(batch);
        None
    }

    /// Whether no rows have been added.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Indexes the chunk.
    pub fn finish(mut self) -> Result<BuildSide> {
        let index = self.index.bytes();
        drop(self.index);
        self.grant.grow(index);
        BuildSide::try_new(&self.spec, self.batches, None, self.grant)
    }
}
