//! Takes the build side in, spilling what does not fit.

use std::sync::Arc;

use arrow::array::{Array, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::DataType;

use super::build_side::BuildSide;
use crate::error::{JoinError, Result};
use crate::hash_table::{ChainedTable, JoinTable, VisitedRows};
use crate::keys::Keys;
use crate::memory::{Grant, UnitMemory, batch_bytes, compact};
use crate::spec::{JoinSpec, Side};
use crate::spill::{Radix, RadixPartitions, SpillStore, SpillTuning, SpilledPartition};

/// The build side of a join while it is being read.
///
/// It starts as a plain list of batches. When memory runs out it becomes *hybrid*: its rows are partitioned, and the
/// largest partitions move to files until the rest fits.
#[derive(Debug)]
pub struct HybridBuild<S: SpillStore> {
    spec: Arc<JoinSpec>,
    store: Arc<S>,
    memory: Arc<UnitMemory>,
    tuning: SpillTuning,
    /// How many bits of the hash have been used up by the levels above.
    used_bits: u32,
    rows: usize,
    state: State<S>,
}

#[derive(Debug)]
enum State<S: SpillStore> {
    InMemory {
        batches: Vec<RecordBatch>,
        grant: Grant,
        /// For each column whose arrays address their values by 32-bit offsets, the bytes of values so far.
        offsets: Vec<usize>,
    },
    Hybrid(RadixPartitions<S>),
}

/// A build side that has been read to its end.
#[derive(Debug)]
pub struct Built<S: SpillStore> {
    /// What is in memory.
    pub side: BuildSide,
    /// For each partition, what is in files.
    pub spilled: Vec<Option<SpilledPartition<S::File>>>,
    /// All rows, in memory and in files.
    pub rows: usize,
}

impl<S: SpillStore> HybridBuild<S> {
    /// A build side without rows, for partitions that already share the first `used_bits` bits of their hashes.
    pub fn new(
        spec: Arc<JoinSpec>,
        store: Arc<S>,
        memory: Arc<UnitMemory>,
        tuning: SpillTuning,
        used_bits: u32,
    ) -> Self {
        let offsets = vec![0; spec.build_schema.fields().len()];
        let state = State::InMemory { batches: Vec::new(), grant: memory.grant(), offsets };
        Self { spec, store, memory, tuning, used_bits, rows: 0, state }
    }

    /// Adds build rows.
    ///
    /// # Errors
    /// Fails if memory is spent and spilling is switched off or impossible, or if a file cannot be written.
    pub fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let mut batch = batch;
        let mut keys = None;
        if !self.spec.join_type.keeps_unmatched_build() {
            let all = self.spec.keys(Side::Build, &batch)?;
            match without_unmatchable(&batch, &all)? {
                Some(fewer) => batch = fewer,
                None => keys = Some(all),
            }
        }
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let batch = compact(batch)?;
        self.rows += batch.num_rows();
        if let State::InMemory { batches, grant, offsets } = &mut self.state {
            let fits = add_offset_bytes(&batch, offsets) && self.rows <= ChainedTable::<u64>::MAX_ROWS;
            let granted = grant.try_grow(batch_bytes(&batch));
            if fits && granted.is_ok() {
                batches.push(batch);
                return Ok(());
            }
            self.turn_hybrid(granted)?;
        }
        let keys = match keys {
            Some(keys) => keys,
            None => self.spec.keys(Side::Build, &batch)?,
        };
        self.hybrid().push(&batch, &keys)
    }

    fn hybrid(&mut self) -> &mut RadixPartitions<S> {
        match &mut self.state {
            State::Hybrid(partitions) => partitions,
            State::InMemory { .. } => unreachable!("called once the build side has turned hybrid"),
        }
    }

    /// Partitions all rows so far. `cause` says why memory did not suffice.
    fn turn_hybrid(&mut self, cause: Result<()>) -> Result<()> {
        let columns = self.spec.build_schema.fields().len().max(self.spec.probe_schema.fields().len());
        if !self.tuning.enabled {
            return Err(cause.err().unwrap_or_else(too_many_rows));
        }
        self.memory.raise_floor(self.tuning.floor(columns))?;
        let stage = self.tuning.stage(columns, self.memory.used());
        let fanout = self.tuning.fanout(columns, stage);
        let Some(radix) = Radix::new(self.used_bits, fanout) else {
            return Err(cause.err().unwrap_or_else(too_many_rows));
        };
        let partitions = RadixPartitions::new(Side::Build, radix, Arc::clone(&self.store), &self.memory, stage, true);
        let State::InMemory { batches, mut grant, .. } = std::mem::replace(&mut self.state, State::Hybrid(partitions))
        else {
            unreachable!("a build side turns hybrid once");
        };
        for batch in batches {
            let keys = self.spec.keys(Side::Build, &batch)?;
            self.hybrid().push(&batch, &keys)?;
            let bytes = batch_bytes(&batch);
            drop(batch);
            grant.shrink(bytes);
        }
        Ok(())
    }

    /// Indexes what is in memory, moving partitions to files until the hash table fits as well.
    pub fn finish(mut self) -> Result<Built<S>> {
        if let State::InMemory { batches, grant, .. } = &mut self.state {
            let granted = grant.try_grow(index_bytes(&self.spec, batches.iter()));
            if let Err(cause) = granted {
                self.turn_hybrid(Err(cause))?;
            }
        }
        match self.state {
            State::InMemory { batches, grant, .. } => {
                let side = BuildSide::try_new(&self.spec, batches, None, grant)?;
                Ok(Built { side, spilled: Vec::new(), rows: self.rows })
            }
            State::Hybrid(mut partitions) => {
                partitions.finish_stage()?;
                let mut index = self.memory.grant();
                while index.try_grow(index_bytes(&self.spec, partitions.resident_batches())).is_err() {
                    if !partitions.spill_largest()? {
                        break;
                    }
                }
                let radix = partitions.radix();
                let (batches, mut memory, files) = partitions.finish()?;
                let index_bytes = index.bytes();
                drop(index);
                memory.grow(index_bytes);
                let is_spilled = files.iter().map(Option::is_some).collect();
                let side = BuildSide::try_new(&self.spec, batches, Some((radix, is_spilled)), memory)?;
                Ok(Built { side, spilled: files, rows: self.rows })
            }
        }
    }
}

fn too_many_rows() -> JoinError {
    JoinError::Limit(format!(
        "The build side of a join has more than {} rows or more than 2 GiB of text in one column, which needs \
         partitions in files; set overspill.spill = true and overspill.max_recursion_depth above 0",
        ChainedTable::<u64>::MAX_ROWS
    ))
}

/// What a hash table over these batches takes on top of the batches: the table, the bitmap of visited rows, and the
/// largest column once more while the batches are concatenated.
pub(super) fn index_bytes<'a>(spec: &JoinSpec, batches: impl Iterator<Item = &'a RecordBatch>) -> usize {
    let mut rows = 0;
    let mut columns = vec![0; spec.build_schema.fields().len()];
    let mut count = 0;
    for batch in batches {
        count += 1;
        rows += batch.num_rows();
        for (bytes, column) in columns.iter_mut().zip(batch.columns()) {
            *bytes += column.get_array_memory_size();
        }
    }
    if rows == 0 {
        return 0;
    }
    let copied = if count > 1 { columns.iter().copied().max().unwrap_or(0) } else { 0 };
    // Keys in row format are about as large as the columns they come from; all columns are their upper bound.
    let rows_format = if spec.codec.is_row_format() { columns.iter().sum::<usize>() + 16 * rows } else { 0 };
    let visited = if spec.join_type.emits_build_at_end() { VisitedRows::bytes(rows) } else { 0 };
    JoinTable::bytes(&spec.codec, rows) + visited + rows_format + copied
}

/// The rows of a batch that can match; `None` if all can.
fn without_unmatchable(batch: &RecordBatch, keys: &Keys) -> Result<Option<RecordBatch>> {
    match &keys.matchable {
        Some(matchable) => Ok(Some(filter_record_batch(batch, &BooleanArray::new(matchable.inner().clone(), None))?)),
        None => Ok(None),
    }
}

/// Adds the bytes that columns with 32-bit offsets address; false if a concatenation would pass what they can address.
fn add_offset_bytes(batch: &RecordBatch, offsets: &mut [usize]) -> bool {
    let mut fits = true;
    for (bytes, column) in offsets.iter_mut().zip(batch.columns()) {
        if has_small_offsets(column.data_type()) {
            *bytes += column.get_array_memory_size();
            fits &= *bytes <= i32::MAX as usize;
        }
    }
    fits
}

fn has_small_offsets(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::Binary | DataType::List(_) | DataType::Map(_, _) | DataType::ListView(_) => true,
        DataType::LargeList(field) | DataType::LargeListView(field) | DataType::FixedSizeList(field, _) => {
            has_small_offsets(field.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|field| has_small_offsets(field.data_type())),
        DataType::Dictionary(_, values) => has_small_offsets(values),
        _ => false,
    }
}
