//! The build side of a join, ready to be probed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrow::array::{BooleanArray, RecordBatch, UInt32Array};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::SchemaRef;
use tracing::debug_span;

use super::accelerator::AcceleratedRows;
use super::keyed_batch::KeyedBatch;
use super::output::{BuildRows, Pairs, Rows, SideRows};
use super::payload::{PackedBuild, PackedPayload};
use super::plan::JoinPlan;
use crate::error::{JoinError, Result};
use crate::hash_table::{JoinTable, VisitedRows};
use crate::join_type::JoinType;
use crate::memory::{Grant, HeldMemory, MAX_COPY_BYTES, RowSizes};
use crate::rows::{can_reorder, concat_batches, reorder_batch};
use crate::spec::{JoinSpec, Side};
use crate::spill::Radix;

/// Minimum build rows for reordering; smaller tables stay in the cache.
const WORTH_REORDERING: usize = 64 << 10;

/// The build rows in memory, with their hash table; shared by all probers.
#[derive(Debug)]
pub struct BuildSide {
    whole: WholeRows,
    rows: usize,
    /// Bytes that copies of the rows take.
    pub(super) sizes: RowSizes,
    /// How the table stores the needed columns, if it does; there are then no whole rows.
    pub(super) payload: Option<PackedPayload>,
    table: LazyTable,
    /// The rows as an accelerator holds them. There is then no table in CPU memory until the accelerator fails.
    accelerated: Option<Arc<dyn AcceleratedRows>>,
    pub(super) visited: VisitedRows,
    /// The rows whose key is not null, for joins that decide by it which rows they emit.
    matchable: Option<NullBuffer>,
    /// `None` if all rows are in memory.
    pub(super) spilled: Option<SpilledBuild>,
    _memory: Grant,
}

/// The part of a build side that is in files.
#[derive(Debug)]
pub(super) struct SpilledBuild {
    /// How rows are partitioned.
    pub(super) radix: Radix,
    /// Which partitions are in files.
    pub(super) is_spilled: Vec<bool>,
    /// Bytes of rows that were collected before each write to files.
    pub(super) stage: usize,
    /// Pays for the stage, which the probe side then uses to partition its rows.
    pub(super) _buffers: Grant,
}

/// Facts about the subquery's keys in a null-aware join; shared by all levels of the join.
///
/// The subquery's side is the one that the join does not emit: the probe side of a `LeftAnti` or `LeftMark` join, the build
/// side of a `RightMark` join.
#[derive(Debug, Default)]
pub struct SubqueryFacts {
    has_rows: AtomicBool,
    has_null: AtomicBool,
}

impl SubqueryFacts {
    /// Records `rows` rows of the subquery. Keys are null that are not in `matchable`.
    pub(super) fn note(&self, rows: usize, matchable: Option<&NullBuffer>) {
        if rows > 0 {
            self.has_rows.store(true, Ordering::Relaxed);
        }
        if matchable.is_some_and(|matchable| matchable.null_count() > 0) {
            self.has_null.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a key of the subquery is null.
    pub fn has_null(&self) -> bool {
        self.has_null.load(Ordering::Relaxed)
    }

    /// Whether the subquery has rows.
    fn has_rows(&self) -> bool {
        self.has_rows.load(Ordering::Relaxed)
    }

    /// The three-valued marks of rows. A mark is true where `matched`. It is unknown if the subquery has rows and either the
    /// row's key (valid in `keys`) or a key of the subquery is null. Else it is false. Call this after the whole subquery has
    /// been read.
    pub(super) fn marks(&self, matched: BooleanBuffer, keys: Option<&NullBuffer>) -> BooleanArray {
        if !self.has_rows() {
            return BooleanArray::new(matched, None);
        }
        let known = match keys {
            _ if self.has_null() => matched.clone(),
            Some(keys) => &matched | keys.inner(),
            None => return BooleanArray::new(matched, None),
        };
        BooleanArray::new(matched, Some(NullBuffer::new(known)))
    }
}

/// A hash table in CPU memory that is built on first use.
#[derive(Debug, Default)]
struct LazyTable {
    table: OnceLock<JoinTable>,
    making: Mutex<()>,
}

impl From<JoinTable> for LazyTable {
    fn from(table: JoinTable) -> Self {
        Self { table: table.into(), making: Mutex::default() }
    }
}

impl LazyTable {
    fn get_or_make(&self, make: impl FnOnce() -> Result<JoinTable>) -> Result<&JoinTable> {
        if let Some(table) = self.table.get() {
            return Ok(table);
        }
        // A thread that panicked while building left no table.
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        match self.table.get() {
            Some(table) => Ok(table),
            None => {
                let table = make()?;
                Ok(self.table.get_or_init(|| table))
            }
        }
    }
}

/// Rows in one batch, which is made when it is first needed.
#[derive(Debug)]
struct WholeRows {
    batch: OnceLock<RecordBatch>,
    /// The rows until the batch is made; `None` from then on.
    parts: Mutex<Option<Vec<RecordBatch>>>,
    /// No rows.
    empty: RecordBatch,
}

impl WholeRows {
    fn of_parts(schema: &SchemaRef, parts: Vec<RecordBatch>) -> Self {
        let empty = RecordBatch::new_empty(Arc::clone(schema));
        match <[RecordBatch; 1]>::try_from(parts) {
            Ok([batch]) => Self { batch: batch.into(), parts: None.into(), empty },
            Err(parts) => Self { batch: OnceLock::new(), parts: Some(parts).into(), empty },
        }
    }

    /// The batch. If it has not been made, nothing has needed it, and there are no rows in it.
    fn get(&self) -> &RecordBatch {
        self.batch.get().unwrap_or(&self.empty)
    }

    /// The batch, which `threads` threads make if it is not there.
    fn get_or_make(&self, threads: usize) -> Result<&RecordBatch> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(batch) = self.batch.get() {
            return Ok(batch);
        }
        let Some(parts) = parts.take() else {
            return Err(JoinError::Limit(
                "The rows of a build side could not be concatenated: the error of another stream of this join says why"
                    .to_owned(),
            ));
        };
        let batch = concat_batches(self.empty.schema_ref(), parts, threads)?;
        Ok(self.batch.get_or_init(|| batch))
    }
}

impl BuildSide {
    /// Indexes build rows; `memory` pays for them and for building the index.
    ///
    /// If an accelerator takes the rows, the memory for an index stays reserved, so that the CPU can continue if the
    /// accelerator fails.
    pub(super) fn try_new(plan: &JoinPlan, batches: Vec<KeyedBatch>, memory: Grant) -> Result<Self> {
        let Some(accelerator) = &plan.accelerator else { return Self::on_host(plan, batches, memory) };
        let (spec, threads) = (&plan.spec, plan.build_threads);
        let mut batches: Vec<_> = batches.into_iter().map(|batch| batch.batch).collect();
        // If pairs have the columns of build rows, their batches stay apart unless the CPU must join.
        let payload = PackedPayload::of(spec, Side::Build)
            .filter(|payload| !payload.is_empty() && batches.iter().all(|batch| payload.takes(batch)));
        if payload.is_none() {
            batches = vec![concat_batches(spec.schema(Side::Build), batches, threads)?];
        }
        let mut memory = memory;
        match accelerator.take(spec, &batches, payload, threads, &mut memory)? {
            Some(accelerated) => Self::accelerated_by(spec, batches, accelerated, memory),
            None => {
                let batches = batches.into_iter().map(|batch| KeyedBatch::new(spec, batch));
                Self::on_host(plan, batches.collect::<Result<_>>()?, memory)
            }
        }
    }

    fn accelerated_by(
        spec: &JoinSpec,
        batches: Vec<RecordBatch>,
        accelerated: Arc<dyn AcceleratedRows>,
        memory: Grant,
    ) -> Result<Self> {
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        let whole = WholeRows::of_parts(spec.schema(Side::Build), batches);
        let visited = VisitedRows::new(if spec.join_type.emits_build_at_end() { rows } else { 0 });
        let matchable =
            if spec.null_aware { spec.codec.matchable(&spec.build_keys.evaluate(whole.get())?) } else { None };
        let (table, accelerated) = (LazyTable::default(), Some(accelerated));
        // Rows that are packed have columns of fixed width, whose sizes no rows are needed for.
        let sizes = spec.row_sizes(Side::Build, whole.get());
        Ok(Self {
            whole,
            rows,
            sizes,
            payload: None,
            table,
            accelerated,
            visited,
            matchable,
            spilled: None,
            _memory: memory,
        })
    }

    /// Indexes build rows in CPU memory.
    pub(super) fn on_host(plan: &JoinPlan, batches: Vec<KeyedBatch>, memory: Grant) -> Result<Self> {
        let rows: usize = batches.iter().map(|batch| batch.batch.num_rows()).sum();
        let _indexing = debug_span!("make hash table", rows).entered();
        let Indexed { batch, rows, payload, table, matchable } = match packed(plan, &batches)? {
            Some(indexed) => {
                drop(batches);
                indexed
            }
            None => by_number(plan, batches)?,
        };
        let spec = &plan.spec;
        let visited = if spec.join_type.emits_build_at_end() { rows } else { 0 };
        let mut memory_of = HeldMemory::default();
        let held = memory_of.add(&batch)
            + table.hold_keys(&mut memory_of)
            + table.bytes_with_filter()
            + VisitedRows::bytes(visited);
        let mut memory = memory;
        memory.shrink(memory.bytes().saturating_sub(held));
        let visited = VisitedRows::new(visited);
        let (table, accelerated) = (table.into(), None);
        let sizes = spec.row_sizes(Side::Build, &batch);
        let whole = WholeRows::of_parts(spec.schema(Side::Build), vec![batch]);
        Ok(Self { whole, rows, sizes, payload, table, accelerated, visited, matchable, spilled: None, _memory: memory })
    }

    /// The hash table in CPU memory. Builds it now if an accelerator was to join.
    pub(super) fn table(&self, plan: &JoinPlan) -> Result<&JoinTable> {
        self.table.get_or_make(|| {
            let _indexing = debug_span!("make hash table", rows = self.rows).entered();
            let columns = plan.spec.build_keys.evaluate(self.whole.get_or_make(plan.build_threads)?)?;
            let keys = plan.spec.codec.encode_in_parallel(&columns, plan.build_threads)?;
            JoinTable::build(keys, plan.table_choice, plan.build_threads)
        })
    }

    /// The hash table in CPU memory, if it has been built.
    pub(super) fn table_in_memory(&self) -> Option<&JoinTable> {
        self.table.table.get()
    }

    /// Adds the partitions in files.
    pub(super) fn with_spilled(self, spilled: SpilledBuild) -> Self {
        Self { spilled: Some(spilled), ..self }
    }

    /// The number of rows in memory.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes that probing reads at random: the table and the columns it refers to; 0 if an accelerator joins.
    pub(super) fn probed_bytes(&self) -> usize {
        self.table_in_memory().map_or(0, |table| table.bytes() + HeldMemory::default().add(self.whole.get()))
    }

    /// The rows as an accelerator holds them, if one has taken them.
    pub(super) fn accelerated(&self) -> Option<&Arc<dyn AcceleratedRows>> {
        self.accelerated.as_ref()
    }

    /// Whether part of the build side is in files.
    pub fn is_spilled(&self) -> bool {
        self.spilled.is_some()
    }

    /// How rows are assigned to partitions, if part of the build side is in files.
    pub fn radix(&self) -> Option<Radix> {
        self.spilled.as_ref().map(|spilled| spilled.radix)
    }
}

impl BuildRows for BuildSide {
    fn numbered(&self, rows: ScalarBuffer<u32>) -> SideRows<'_> {
        SideRows::Of(self.whole.get(), Rows::Numbers(UInt32Array::new(rows, None)))
    }

    fn packed(&self, words: ScalarBuffer<u64>) -> SideRows<'_> {
        let accelerated = || self.accelerated.as_ref().and_then(|rows| rows.payload());
        let Some(payload) = self.payload.as_ref().or_else(accelerated) else {
            unreachable!("payloads come from a table that has them")
        };
        SideRows::Packed(payload, words)
    }

    fn nulls(&self, rows: usize) -> SideRows<'_> {
        SideRows::Of(self.whole.get(), Rows::Nulls(rows))
    }

    fn sizes(&self) -> &RowSizes {
        &self.sizes
    }

    fn visited(&self) -> &VisitedRows {
        &self.visited
    }
}

/// Build rows with their hash table, the parts of a [`BuildSide`].
struct Indexed {
    batch: RecordBatch,
    rows: usize,
    payload: Option<PackedPayload>,
    table: JoinTable,
    matchable: Option<NullBuffer>,
}

/// Builds a table that stores the needed columns. Returns `None` if they do not fit or the join needs row numbers.
fn packed(plan: &JoinPlan, batches: &[KeyedBatch]) -> Result<Option<Indexed>> {
    let spec = &plan.spec;
    let Some(payload) = PackedPayload::of(spec, Side::Build).filter(|payload| !payload.is_empty()) else {
        return Ok(None);
    };
    if !batches.iter().all(|batch| payload.takes(&batch.batch)) {
        return Ok(None);
    }
    let packed = PackedBuild { spec, batches, payload: &payload };
    let rows = batches.iter().map(|batch| batch.batch.num_rows()).sum();
    let table = JoinTable::of_payloads(&packed, rows, plan.table_choice, plan.build_threads)?;
    let batch = payload.empty_batch();
    Ok(table.map(|table| Indexed { batch, rows, payload: Some(payload), table, matchable: None }))
}

/// Builds a table of row numbers; the rows are concatenated into one batch.
fn by_number(plan: &JoinPlan, batches: Vec<KeyedBatch>) -> Result<Indexed> {
    let (spec, threads) = (&plan.spec, plan.build_threads);
    let (batch, keys) = KeyedBatch::concat(spec, batches, threads)?;
    let rows = batch.num_rows();
    let matchable = keys.matchable.clone().filter(|_| spec.null_aware);
    let table = JoinTable::build(keys, plan.table_choice, threads)?;
    // After reordering, a probe row finds its match with one cache miss, not two.
    let (batch, table) = match table.order() {
        Some(order) if rows >= WORTH_REORDERING && can_reorder(&batch) => {
            (reorder_batch(&batch, order, threads)?, table.in_order())
        }
        _ => (batch, table),
    };
    Ok(Indexed { batch, rows, payload: None, table, matchable })
}

/// Emits build rows by whether they matched, after all probing is done.
#[derive(Debug)]
pub struct BuildEmitter {
    plan: Arc<JoinPlan>,
    build: Arc<BuildSide>,
    facts: Arc<SubqueryFacts>,
    next_row: usize,
}

impl BuildEmitter {
    /// Starts at the first row.
    pub fn new(plan: Arc<JoinPlan>, build: Arc<BuildSide>, facts: Arc<SubqueryFacts>) -> Self {
        Self { plan, build, facts, next_row: 0 }
    }

    /// The next batch of at most `batch_size` rows.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let (spec, build) = (&self.plan.spec, &self.build);
        let is_not_in = spec.null_aware && spec.join_type == JoinType::LeftAnti;
        if !spec.join_type.emits_build_at_end() || (is_not_in && self.facts.has_null()) {
            return Ok(None);
        }
        while self.next_row < build.rows() {
            // Advances by whole ranges of rows, regardless of how many of them are emitted.
            let end = build.sizes.end_of_rows(self.next_row, self.plan.batch_size, MAX_COPY_BYTES);
            let range = self.next_row..end;
            self.next_row = end;
            let mut mark = None;
            let rows = if spec.join_type == JoinType::LeftMark {
                let (first, len) = (range.start, range.len());
                let matched = BooleanBuffer::collect_bool(len, |row| build.visited.get((first + row) as u32));
                mark = Some(if spec.null_aware {
                    let keys = build.matchable.as_ref().map(|matchable| matchable.slice(first, len));
                    self.facts.marks(matched, keys.as_ref())
                } else {
                    BooleanArray::new(matched, None)
                });
                Rows::Range(range.start, range.len())
            } else {
                let wanted = spec.join_type == JoinType::LeftSemi;
                let keeps_null = !spec.null_aware || !self.facts.has_rows();
                let matchable = build.matchable.as_ref().filter(|_| !keeps_null);
                Rows::from_numbers(
                    range
                        .filter(|row| build.visited.get(*row as u32) == wanted)
                        .filter(|row| matchable.is_none_or(|matchable| matchable.is_valid(*row)))
                        .map(|row| row as u32)
                        .collect::<Vec<_>>()
                        .into(),
                )
            };
            if rows.len() > 0 {
                let nulls = Rows::Nulls(rows.len());
                let probe = RecordBatch::new_empty(Arc::clone(&spec.probe_schema));
                let pairs =
                    Pairs { build: SideRows::Of(build.whole.get(), rows), probe: SideRows::Of(&probe, nulls), mark };
                return pairs.output(spec).map(Some);
            }
        }
        Ok(None)
    }
}
