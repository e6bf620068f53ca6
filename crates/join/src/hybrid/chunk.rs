//! A build side that is joined in several passes.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::build_side::BuildSide;
use super::keyed_batch::KeyedBatch;
use super::plan::JoinPlan;
use crate::error::Result;
use crate::hash_table::{IndexCost, JoinTable};
use crate::memory::{Grant, HeldMemory, UnitMemory};

/// A chunk of a build partition that hashing cannot split; each chunk is joined with the whole probe partition.
///
/// The first batch of a chunk is accepted even if it exceeds the budget: without it the join could not continue.
#[derive(Debug)]
pub struct ChunkBuild {
    plan: Arc<JoinPlan>,
    index: IndexCost,
    batches: Vec<KeyedBatch>,
    held: HeldMemory,
    grant: Grant,
    rows: usize,
}

impl ChunkBuild {
    /// An empty chunk.
    pub fn new(plan: Arc<JoinPlan>, memory: &Arc<UnitMemory>) -> Self {
        let index = IndexCost::new(&plan.spec);
        Self { plan, index, batches: Vec::new(), held: HeldMemory::default(), grant: memory.grant(), rows: 0 }
    }

    /// Adds a batch, or gives it back if there is no more room.
    pub fn push(&mut self, batch: RecordBatch) -> Result<Option<RecordBatch>> {
        let mut batch = KeyedBatch::new(&self.plan.spec, batch)?;
        let bytes = batch.hold(&self.plan.spec, &mut self.held, self.index)?;
        let rows = self.rows + batch.batch.num_rows();
        if self.batches.is_empty() {
            self.grant.grow(bytes);
        } else {
            // Columns may use 32-bit offsets.
            let too_many = rows > JoinTable::MAX_ROWS || self.grant.bytes() + bytes > i32::MAX as usize;
            if too_many || self.grant.try_grow(bytes).is_err() {
                return Ok(Some(batch.batch));
            }
        }
        self.rows = rows;
        self.batches.push(batch);
        Ok(None)
    }

    /// Whether no rows have been added.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Indexes the chunk. An accelerator is not used: the chunk has few keys with many rows each.
    pub fn finish(self) -> Result<BuildSide> {
        BuildSide::on_host(&self.plan, self.batches, self.grant)
    }
}
