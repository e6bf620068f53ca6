//! Tables in memory whose rows count against the memory limit.

use std::fmt::{Debug, Formatter};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::runtime::JoinSet;
use datafusion::common::{
    Constraint, Constraints, Result, SchemaExt, exec_datafusion_err, not_impl_err, resources_datafusion_err,
};
use datafusion::datasource::memory::PartitionData;
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::datasource::{MemTable, TableProvider, TableType};
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::StreamExt;
use overspill_join::memory::{HeldMemory, compact};
use tokio::sync::RwLockWriteGuard;

use super::RAISE_MEMORY_LIMIT;
use super::keys::{KeyChanges, Keys};
use crate::indexes::{ScanKey, TableIndexes};

use crate::size::Size;

/// A table in memory that reserves its memory in a memory pool, and releases it when it is dropped.
///
/// It scans like DataFusion's [`MemTable`]. Each statement changes it as a whole or not at all: when the pool refuses
/// memory for a batch of an `INSERT`, or a row breaks a `PRIMARY KEY` or a `UNIQUE` constraint, the table stays as it was.
/// `DELETE`, `UPDATE` and `TRUNCATE` work in sessions
/// [with Overspill](crate::OverspillSessionExt), which plan them as queries. A query that still scans a dropped table keeps
/// its rows alive, but no longer counted, until it ends.
#[derive(Debug)]
pub struct ReservedMemTable {
    /// A [`MemTable`]. It is behind the trait because it holds expressions: for every method here, the compiler would take a
    /// minute to prove again that those may be shared between threads.
    table: Arc<dyn TableProvider>,
    /// The rows of the table, by partition.
    partitions: Vec<PartitionData>,
    /// The constraints that the optimizer may rely on.
    believed: Constraints,
    memory: Arc<TableMemory>,
    indexes: Arc<TableIndexes>,
}

/// The rows of a table by partition, locked against every other statement.
pub(crate) type LockedRows<'a> = Vec<RwLockWriteGuard<'a, Vec<RecordBatch>>>;

/// Locks the rows of a table, one partition after the other.
pub(crate) async fn lock(partitions: &[PartitionData]) -> LockedRows<'_> {
    let mut locked = Vec::with_capacity(partitions.len());
    for partition in partitions {
        locked.push(partition.write().await);
    }
    locked
}

/// The memory of a table, shared with the statements that add rows.
#[derive(Debug)]
struct TableMemory {
    table: String,
    reservation: MemoryReservation,
    pool: Arc<dyn MemoryPool>,
    /// The part of the reservation, in bytes, for rows of the table. It excludes the rows of an unfinished statement, and the
    /// values of keys.
    committed: AtomicUsize,
    keys: Keys,
}

impl TableMemory {
    fn try_grow(&self, bytes: usize) -> Result<()> {
        self.reservation.try_grow(bytes).map_err(|error| self.outgrown(bytes, error))
    }

    /// Does what [`ReservedMemTable::replace`] says.
    fn replace(
        self: &Arc<Self>,
        mut locked: LockedRows<'_>,
        new: Vec<Vec<RecordBatch>>,
        removed: &[RecordBatch],
        columns: &[usize],
        indexes: &TableIndexes,
    ) -> Result<()> {
        // Old and new rows exist at the same time for a while, but share the arrays that do not change.
        let mut held = HeldMemory::default();
        locked.iter().flat_map(|partition| partition.iter()).for_each(|batch| _ = held.add(batch));
        let mut staged = Staged::new(self);
        staged.try_grow(new.iter().flatten().map(|batch| held.add(batch)).sum())?;
        let keys = self.keys.replace(columns, &new.concat())?;
        staged.try_grow(keys.bytes)?;
        let removed_keys = self.keys.remove(removed)?;
        // Nothing below can fail: the memory of the old rows and keys is released, that of the new ones is kept.
        let mut held = HeldMemory::default();
        let rows = new.iter().flatten().map(|batch| held.add(batch)).sum();
        for (partition, new) in locked.iter_mut().zip(new) {
            **partition = new;
        }
        let kept = rows + keys.bytes;
        let before = self.committed.swap(rows, Ordering::Relaxed);
        let reserved = before + std::mem::take(&mut staged.bytes) + self.keys.commit(keys) + removed_keys;
        self.reservation.shrink(reserved.saturating_sub(kept));
        indexes.outdated("rows were changed or deleted");
        drop(locked);
        Ok(())
    }

    fn outgrown(&self, bytes: usize, error: DataFusionError) -> DataFusionError {
        let limit = match self.pool.memory_limit() {
            MemoryLimit::Finite(limit) => format!("the memory limit of {}", Size(limit)),
            MemoryLimit::Infinite | MemoryLimit::Unknown => "the memory limit".to_owned(),
        };
        let cause = match error {
            DataFusionError::ResourcesExhausted(message) => message,
            other => other.to_string(),
        };
        // Overspill's own pool already says how to raise the limit; other pools do not.
        let remedy = if cause.ends_with(RAISE_MEMORY_LIMIT) { "" } else { RAISE_MEMORY_LIMIT };
        let message = format!(
            "Table '{}' does not fit within {limit}: it holds {} and needs {} more. {cause} {remedy}",
            self.table,
            Size(self.reservation.size()),
            Size(bytes),
        );
        resources_datafusion_err!("{}", message.trim_end())
    }
}

/// Memory reserved for rows that are not in the table yet. It is released unless committed.
struct Staged {
    memory: Arc<TableMemory>,
    bytes: usize,
}

impl Staged {
    fn new(memory: &Arc<TableMemory>) -> Self {
        Self { memory: Arc::clone(memory), bytes: 0 }
    }

    fn try_grow(&mut self, bytes: usize) -> Result<()> {
        self.memory.try_grow(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Takes over the memory that another one has reserved.
    fn take(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Transfers the memory to the table, for rows and for the values of keys that `keys` adds.
    fn commit(mut self, keys: KeyChanges) {
        let rows = std::mem::take(&mut self.bytes) - keys.bytes;
        self.memory.committed.fetch_add(rows, Ordering::Relaxed);
        self.memory.reservation.shrink(self.memory.keys.commit(keys));
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.memory.reservation.shrink(self.bytes);
    }
}

/// Casts the rows to the types of the table. The planner of an `INSERT` casts its columns, but later rules may change their
/// types.
///
/// # Errors
/// Fails for a value that its column cannot hold.
fn of_types(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let fields = schema.fields().iter();
    if batch.columns().iter().zip(fields.clone()).all(|(column, field)| column.data_type() == field.data_type()) {
        return Ok(batch);
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let columns = batch.columns().iter().zip(fields);
    let columns = columns.map(|(column, field)| cast_with_options(column, field.data_type(), &options));
    Ok(RecordBatch::try_new(Arc::clone(schema), columns.collect::<Result<_, _>>()?)?)
}

/// Collects a stream's rows, reserving memory batch by batch.
async fn collect(
    mut rows: SendableRecordBatchStream,
    schema: SchemaRef,
    memory: Arc<TableMemory>,
) -> Result<(Vec<RecordBatch>, Staged)> {
    let mut staged = Staged::new(&memory);
    let mut held = HeldMemory::default();
    let mut batches = vec![];
    while let Some(batch) = rows.next().await.transpose()? {
        if batch.num_rows() > 0 {
            let batch = compact(of_types(batch, &schema)?)?;
            staged.try_grow(held.add(&batch))?;
            batches.push(batch);
        }
    }
    Ok((batches, staged))
}

impl ReservedMemTable {
    /// Creates a table called `name` with one partition for each stream in `partitions`. The streams run at the same time and
    /// stop at the first error. `declare` adds further declarations, such as constraints and the defaults of columns.
    ///
    /// # Errors
    /// Returns the errors of the streams, and [`DataFusionError::ResourcesExhausted`] when `pool` refuses the memory.
    pub async fn try_new(
        name: &str,
        schema: SchemaRef,
        partitions: Vec<SendableRecordBatchStream>,
        pool: &Arc<dyn MemoryPool>,
        declare: impl FnOnce(MemTable) -> MemTable,
    ) -> Result<Self> {
        let declared = declare(MemTable::try_new(Arc::clone(&schema), vec![vec![]; partitions.len().max(1)])?);
        let reservation = MemoryConsumer::new(format!("Table '{name}'")).register(pool);
        let memory = Arc::new(TableMemory {
            table: name.to_owned(),
            reservation,
            pool: Arc::clone(pool),
            committed: AtomicUsize::new(0),
            keys: Keys::new(name, declared.constraints().unwrap_or(&Constraints::default()), &schema)?,
        });
        let mut rows = vec![vec![]; declared.batches.len()];
        let mut tasks = JoinSet::new();
        for (partition, stream) in partitions.into_iter().enumerate() {
            let memory = Arc::clone(&memory);
            let schema = Arc::clone(&schema);
            tasks.spawn(async move { (partition, collect(stream, schema, memory).await) });
        }
        // All or nothing: an error drops the staged rows and the set of tasks, which aborts the tasks still running.
        let mut staged = Staged::new(&memory);
        while let Some(finished) = tasks.join_next().await {
            let (partition, collected) = finished.map_err(|error| match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => exec_datafusion_err!("Creating table '{name}' was interrupted: {error}"),
            })?;
            let (batches, memory) = collected?;
            MemTable::try_new(Arc::clone(&schema), vec![batches.clone()])?;
            rows[partition] = batches;
            staged.take(memory);
        }
        let keys = memory.keys.add(&rows.concat())?;
        staged.try_grow(keys.bytes)?;
        let partitions = declared.batches.clone();
        for (partition, rows) in partitions.iter().zip(rows) {
            *partition.write().await = rows;
        }
        staged.commit(keys);
        let believed = believed(declared.constraints(), &schema);
        Ok(Self { partitions, table: Arc::new(declared), believed, memory, indexes: Arc::default() })
    }

    /// The bytes that the table has reserved.
    pub fn reserved(&self) -> usize {
        self.memory.reservation.size()
    }

    /// The rows of the table.
    pub(crate) fn partitions(&self) -> &[PartitionData] {
        &self.partitions
    }

    /// The rows of the table as they are now.
    pub(crate) async fn snapshot(&self) -> Vec<Vec<RecordBatch>> {
        let mut rows = Vec::with_capacity(self.partitions.len());
        for partition in &self.partitions {
            rows.push(partition.read().await.clone());
        }
        rows
    }

    /// The indexes of the table.
    pub(crate) fn indexes(&self) -> &TableIndexes {
        &self.indexes
    }

    /// Whether the table has constraints that rows could break.
    pub(crate) fn has_keys(&self) -> bool {
        !self.memory.keys.is_empty()
    }

    /// Replaces all rows by `new`, or fails and leaves the table as it is. `removed` holds the rows that are removed without
    /// a replacement; `columns` are the columns with changed values.
    pub(crate) fn replace(
        &self,
        locked: LockedRows<'_>,
        new: Vec<Vec<RecordBatch>>,
        removed: &[RecordBatch],
        columns: &[usize],
    ) -> Result<()> {
        self.memory.replace(locked, new, removed, columns, &self.indexes)
    }
}

/// The constraints that the optimizer may rely on.
///
/// A `UNIQUE` over nullable columns allows any number of equal rows with a NULL. DataFusion 55 still removes `DISTINCT` over
/// it.
fn believed(declared: Option<&Constraints>, schema: &Schema) -> Constraints {
    let holds = |constraint: &&Constraint| match constraint {
        Constraint::PrimaryKey(_) => true,
        Constraint::Unique(columns) => columns.iter().all(|column| !schema.field(*column).is_nullable()),
    };
    let declared = declared.into_iter().flat_map(|constraints| constraints.iter());
    Constraints::new_unverified(declared.filter(holds).cloned().collect())
}

#[async_trait]
impl TableProvider for ReservedMemTable {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn constraints(&self) -> Option<&Constraints> {
        Some(&self.believed)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.table.get_column_default(column)
    }

    // Methods with expressions are written as `async_trait` would expand them, so that none of our futures holds expressions.
    fn scan<'s, 'session, 'columns, 'filters, 'async_trait>(
        &'s self,
        state: &'session dyn Session,
        projection: Option<&'columns Vec<usize>>,
        filters: &'filters [Expr],
        limit: Option<usize>,
    ) -> Planned<'async_trait>
    where
        's: 'async_trait,
        'session: 'async_trait,
        'columns: 'async_trait,
        'filters: 'async_trait,
        Self: 'async_trait,
    {
        let key = ScanKey::new(state, projection);
        let changes = match self.indexes.kept_scan(&key) {
            Ok(scan) => return Box::pin(std::future::ready(Ok(scan))),
            Err(changes) => changes,
        };
        let planned = self.table.scan(state, projection, filters, limit);
        let indexes = Arc::clone(&self.indexes);
        Box::pin(async move { Ok(indexes.scan(planned.await?, key, changes)) })
    }

    async fn insert_into(
        &self,
        _state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        op: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.schema().logically_equivalent_names_and_types(&input.schema())?;
        if op == InsertOp::Replace {
            return not_impl_err!(
                "REPLACE INTO is not supported for table '{}' in memory. Write a DELETE and an INSERT",
                self.memory.table
            );
        }
        let sink = TableSink {
            schema: self.schema(),
            partitions: self.partitions.clone(),
            memory: Arc::clone(&self.memory),
            indexes: Arc::clone(&self.indexes),
            overwrites: op == InsertOp::Overwrite,
        };
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), None)))
    }
}

/// The return type of the table's methods that plan something.
type Planned<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn ExecutionPlan>>> + Send + 'a>>;

/// The sink of an `INSERT` into a table in memory.
struct TableSink {
    schema: SchemaRef,
    partitions: Vec<PartitionData>,
    memory: Arc<TableMemory>,
    indexes: Arc<TableIndexes>,
    /// Whether the rows replace the existing ones.
    overwrites: bool,
}

#[async_trait]
impl DataSink for TableSink {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    async fn write_all(&self, rows: SendableRecordBatchStream, _context: &Arc<TaskContext>) -> Result<u64> {
        let (batches, mut staged) = collect(rows, Arc::clone(&self.schema), Arc::clone(&self.memory)).await?;
        let count: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let mut shares = vec![vec![]; self.partitions.len()];
        for (number, batch) in batches.into_iter().enumerate() {
            shares[number % self.partitions.len()].push(batch);
        }
        // Takes all locks first: a statement that is cancelled while it waits has added nothing.
        let mut locked = lock(&self.partitions).await;
        if self.overwrites {
            // Reserved in addition to the rows that are replaced.
            drop(staged);
            let columns: Vec<usize> = (0..self.schema.fields().len()).collect();
            self.memory.replace(locked, shares, &[], &columns, &self.indexes)?;
        } else {
            let new = shares.concat();
            let keys = self.memory.keys.add(&new)?;
            staged.try_grow(keys.bytes)?;
            for (partition, mut share) in locked.iter_mut().zip(shares) {
                partition.append(&mut share);
            }
            staged.commit(keys);
            let now: Vec<&[RecordBatch]> = locked.iter().map(|partition| partition.as_slice()).collect();
            self.indexes.inserted(&new, &now);
            // Only now may another statement see the rows and keys.
            drop(locked);
        }
        Ok(count as u64)
    }
}

impl Debug for TableSink {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableSink").field("table", &self.memory.table).finish_non_exhaustive()
    }
}

impl DisplayAs for TableSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryTable (table={}, partitions={})", self.memory.table, self.partitions.len())
    }
}

#[cfg(test)]
mod tests;
