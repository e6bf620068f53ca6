//! Reads the build side, and spills what does not fit in memory.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::build_side::{BuildSide, SpilledBuild, SubqueryFacts};
use super::keyed_batch::KeyedBatch;
use super::plan::JoinPlan;
use crate::error::{JoinError, Result};
use crate::hash_table::{IndexCost, JoinTable};
use crate::join_type::JoinType;
use crate::memory::{Grant, HeldMemory, UnitMemory, add_offset_bytes};
use crate::spec::Side;
use crate::spill::{Finished, Radix, RadixPartitions, SpillStore, SpillTuning, SpilledPartition};

/// The build side of a join while it is being read.
///
/// It starts as a plain list of batches. When memory runs out it becomes *hybrid*: its rows are partitioned, and the
/// largest partitions move to files until the rest fits.
#[derive(Debug)]
pub struct HybridBuild<S: SpillStore> {
    plan: Arc<JoinPlan>,
    store: Arc<S>,
    memory: Arc<UnitMemory>,
    facts: Arc<SubqueryFacts>,
    tuning: SpillTuning,
    /// How many bits of the hash have been used up by the levels above.
    used_bits: u32,
    index: IndexCost,
    rows: usize,
    state: State<S>,
}

#[derive(Debug)]
enum State<S: SpillStore> {
    InMemory(InMemory),
    Hybrid { partitions: RadixPartitions<S>, radix: Radix, stage: usize, buffers: Grant },
}

/// All rows read so far.
#[derive(Debug)]
struct InMemory {
    /// Each batch with the bytes paid for it.
    batches: Vec<(KeyedBatch, usize)>,
    held: HeldMemory,
    grant: Grant,
    /// For each column and key whose arrays use 32-bit offsets, the bytes of values so far.
    offsets: Vec<usize>,
}

/// A build side that has been read to its end.
#[derive(Debug)]
pub struct Built<S: SpillStore> {
    /// The part in memory.
    pub side: BuildSide,
    /// For each partition, its part in files.
    pub spilled: Vec<Option<SpilledPartition<S::File>>>,
    /// Number of rows, in memory and in files.
    pub rows: usize,
}

impl<S: SpillStore> HybridBuild<S> {
    /// Creates an empty build side, for partitions that already share the first `used_bits` bits of their hashes.
    pub fn new(
        plan: Arc<JoinPlan>,
        store: Arc<S>,
        memory: Arc<UnitMemory>,
        facts: Arc<SubqueryFacts>,
        tuning: SpillTuning,
        used_bits: u32,
    ) -> Self {
        let state = State::InMemory(InMemory {
            batches: Vec::new(),
            held: HeldMemory::default(),
            grant: memory.grant(),
            offsets: Vec::new(),
        });
        let index = IndexCost::new(&plan.spec);
        Self { plan, store, memory, facts, tuning, used_bits, index, rows: 0, state }
    }

    /// Adds build rows.
    ///
    /// # Errors
    /// Fails if memory is spent and spilling is switched off or impossible, or if a file cannot be written.
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let mut batch = KeyedBatch::new(&self.plan.spec, batch)?;
        if !self.plan.spec.join_type.keeps_unmatched_build() {
            let matchable = batch.matchable(&self.plan.spec);
            if self.plan.spec.null_aware && self.plan.spec.join_type == JoinType::RightMark {
                self.facts.note(batch.batch.num_rows(), matchable.as_ref());
            }
            if let Some(matchable) = &matchable {
                batch = batch.filter(matchable)?;
            }
        }
        if batch.batch.num_rows() == 0 {
            return Ok(());
        }
        let mut batch = batch.compact()?;
        self.rows += batch.batch.num_rows();
        if let State::InMemory(rows) = &mut self.state {
            let arrays = batch.arrays();
            rows.offsets.resize(arrays.len(), 0);
            let fits = add_offset_bytes(&arrays, &mut rows.offsets) && self.rows <= JoinTable::MAX_ROWS;
            let bytes = batch.hold(&self.plan.spec, &mut rows.held, self.index)?;
            let granted = rows.grant.try_grow(bytes);
            if fits && granted.is_ok() {
                rows.batches.push((batch, bytes));
                return Ok(());
            }
            self.turn_hybrid(granted)?;
        }
        self.partition(batch)
    }

    /// Whether all rows read so far are in memory, in the order in which they came.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.state, State::InMemory(_))
    }

    /// The rows read so far, each batch with its bytes, and the memory that pays for them. Rows without a key that could match are
    /// left out where the join type drops them. `None` if some rows have left memory.
    pub fn into_rows(self) -> Option<(Vec<(RecordBatch, usize)>, Grant)> {
        let State::InMemory(InMemory { batches, grant, .. }) = self.state else { return None };
        Some((batches.into_iter().map(|(keyed, bytes)| (keyed.batch, bytes)).collect(), grant))
    }

    fn partition(&mut self, batch: KeyedBatch) -> Result<()> {
        let (batch, keys) = batch.into_parts(&self.plan.spec)?;
        match &mut self.state {
            State::Hybrid { partitions, .. } => partitions.push(&batch, &keys, &keys.hashes(), None),
            State::InMemory(_) => unreachable!("called once the build side has turned hybrid"),
        }
    }

    /// Partitions all rows read so far. `cause` is the reason why the memory did not suffice.
    fn turn_hybrid(&mut self, cause: Result<()>) -> Result<()> {
        let columns = self.plan.spec.build_schema.fields().len().max(self.plan.spec.probe_schema.fields().len());
        if !self.tuning.enabled {
            return Err(cause.err().unwrap_or_else(too_many_rows));
        }
        self.memory.raise_floor(SpillTuning::floor(columns))?;
        let stage = self.tuning.stage(columns, self.memory.used());
        let fanout = self.tuning.fanout(columns, stage);
        let Some(radix) = Radix::new(self.used_bits, fanout) else {
            return Err(cause.err().unwrap_or_else(too_many_rows));
        };
        // Granted even beyond the budget: partitioning frees the memory that pays for the buffers.
        let mut buffers = self.memory.grant();
        buffers.grow(self.tuning.buffers(stage));
        let store = Arc::clone(&self.store);
        let partitions = RadixPartitions::in_memory(Side::Build, radix, store, stage, &self.memory, self.index);
        let state = State::Hybrid { partitions, radix, stage, buffers };
        let State::InMemory(InMemory { batches, mut grant, .. }) = std::mem::replace(&mut self.state, state) else {
            unreachable!("a build side turns hybrid once");
        };
        for (batch, bytes) in batches {
            self.partition(batch)?;
            grant.shrink(bytes);
        }
        Ok(())
    }

    /// Indexes the rows in memory.
    pub fn finish(self) -> Result<Built<S>> {
        let rows = self.rows;
        match self.state {
            State::InMemory(InMemory { batches, grant, .. }) => {
                let batches = batches.into_iter().map(|(batch, _)| batch).collect();
                Ok(Built { side: BuildSide::try_new(&self.plan, batches, grant)?, spilled: Vec::new(), rows })
            }
            State::Hybrid { partitions, radix, stage, buffers } => {
                let Finished { resident, memory, files } = partitions.finish()?;
                let memory = memory.unwrap_or_else(|| self.memory.grant());
                let is_spilled = files.iter().map(Option::is_some).collect();
                let resident = resident.into_iter().map(|batch| KeyedBatch::new(&self.plan.spec, batch));
                let resident = resident.collect::<Result<_>>()?;
                let side = BuildSide::try_new(&self.plan, resident, memory)?.with_spilled(SpilledBuild {
                    radix,
                    is_spilled,
                    stage,
                    _buffers: buffers,
                });
                Ok(Built { side, spilled: files, rows })
            }
        }
    }
}

fn too_many_rows() -> JoinError {
    JoinError::Unspillable(format!(
        "The build side of a join has more than {} rows or more than 2 GiB of text in one column, which needs partitions \
         in files",
        JoinTable::MAX_ROWS
    ))
}
