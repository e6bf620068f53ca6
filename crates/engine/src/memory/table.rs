//! Tables in memory whose rows count against the memory limit.

use std::fmt::{Debug, Formatter};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::runtime::JoinSet;
use datafusion::common::{
    Constraints, Result, SchemaExt, exec_datafusion_err, human_readable_size, not_impl_err, resources_datafusion_err,
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

use super::RAISE_MEMORY_LIMIT;

/// A table in memory that reserves what it holds in a memory pool, and gives it back when it is dropped.
///
/// It scans and changes like DataFusion's [`MemTable`]. Rows are added as a whole or not at all: when the pool refuses
/// memory for a batch of an `INSERT`, the table stays as it was. A query that still scans a dropped table keeps its
/// rows alive, but no longer counted, until it ends.
#[derive(Debug)]
pub struct ReservedMemTable {
    /// A [`MemTable`]. Behind the trait because it holds expressions: proving anew that those may be shared between threads,
    /// for every method here, takes the compiler a minute.
    table: Arc<dyn TableProvider>,
    /// The rows of the table, by partition.
    partitions: Vec<PartitionData>,
    memory: Arc<TableMemory>,
}

/// The memory of a table, shared with the statements that add to it.
#[derive(Debug)]
struct TableMemory {
    table: String,
    reservation: MemoryReservation,
    pool: Arc<dyn MemoryPool>,
    /// The part of the reservation, in bytes, that is behind rows of the table and not of an unfinished statement.
    committed: AtomicUsize,
}

impl TableMemory {
    fn try_grow(&self, bytes: usize) -> Result<()> {
        self.reservation.try_grow(bytes).map_err(|error| self.outgrown(bytes, error))
    }

    fn outgrown(&self, bytes: usize, error: DataFusionError) -> DataFusionError {
        let limit = match self.pool.memory_limit() {
            MemoryLimit::Finite(limit) => format!("the memory limit of {}", human_readable_size(limit)),
            MemoryLimit::Infinite | MemoryLimit::Unknown => "the memory limit".to_owned(),
        };
        let cause = match error {
            DataFusionError::ResourcesExhausted(message) => message,
            other => other.to_string(),
        };
        // Overspill's own pool already says how to raise the limit; others do not.
        let remedy = if cause.ends_with(RAISE_MEMORY_LIMIT) { "" } else { RAISE_MEMORY_LIMIT };
        let message = format!(
            "Table '{}' does not fit within {limit}: it holds {} and needs {} more. {cause} {remedy}",
            self.table,
            human_readable_size(self.reservation.size()),
            human_readable_size(bytes),
        );
        resources_datafusion_err!("{}", message.trim_end())
    }
}

/// Memory reserved for rows that are not in the table yet. It is given back unless committed.
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

    fn commit(mut self) {
        self.memory.committed.fetch_add(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.memory.reservation.shrink(self.bytes);
    }
}

/// Takes a stream's rows in, reserving memory batch by batch.
async fn collect(mut rows: SendableRecordBatchStream, memory: Arc<TableMemory>) -> Result<(Vec<RecordBatch>, Staged)> {
    let mut staged = Staged::new(&memory);
    let mut held = HeldMemory::default();
    let mut batches = vec![];
    while let Some(batch) = rows.next().await.transpose()? {
        if batch.num_rows() > 0 {
            let batch = compact(batch)?;
            staged.try_grow(held.add(&batch))?;
            batches.push(batch);
        }
    }
    Ok((batches, staged))
}

impl ReservedMemTable {
    /// Creates a table called `name` out of the rows of `partitions`, each of which becomes a partition of the
    /// table. The streams run at the same time and stop at the first error. `declare` adds what else the table declares,
    /// such as constraints and the defaults of columns.
    ///
    /// # Errors
    /// Whatever the streams fail with, and [`DataFusionError::ResourcesExhausted`] when `pool` refuses the memory.
    pub async fn try_new(
        name: &str,
        schema: SchemaRef,
        partitions: Vec<SendableRecordBatchStream>,
        pool: &Arc<dyn MemoryPool>,
        declare: impl FnOnce(MemTable) -> MemTable,
    ) -> Result<Self> {
        let reservation = MemoryConsumer::new(format!("Table '{name}'")).register(pool);
        let memory = Arc::new(TableMemory {
            table: name.to_owned(),
            reservation,
            pool: Arc::clone(pool),
            committed: AtomicUsize::new(0),
        });
        let mut rows = vec![vec![]; partitions.len().max(1)];
        let mut tasks = JoinSet::new();
        for (partition, stream) in partitions.into_iter().enumerate() {
            let memory = Arc::clone(&memory);
            tasks.spawn(async move { (partition, collect(stream, memory).await) });
        }
        // All or nothing: what is staged goes when an error drops it, and with the set of tasks those still running.
        let mut staged = vec![];
        while let Some(finished) = tasks.join_next().await {
            let (partition, collected) = finished.map_err(|error| match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => exec_datafusion_err!("Creating table '{name}' was interrupted: {error}"),
            })?;
            let (batches, memory) = collected?;
            rows[partition] = batches;
            staged.push(memory);
        }
        let table = declare(MemTable::try_new(schema, rows)?);
        staged.into_iter().for_each(Staged::commit);
        Ok(Self { partitions: table.batches.clone(), table: Arc::new(table), memory })
    }

    /// The bytes that the table has reserved.
    pub fn reserved(&self) -> usize {
        self.memory.reservation.size()
    }

    /// Counts the rows anew after a statement that replaced some.
    async fn recount(&self) {
        let mut held = HeldMemory::default();
        let mut bytes = 0;
        for partition in &self.partitions {
            bytes += partition.read().await.iter().map(|batch| held.add(batch)).sum::<usize>();
        }
        let before = self.memory.committed.swap(bytes, Ordering::Relaxed);
        match bytes.checked_sub(before) {
            // The rows are in the table already, so this cannot be refused.
            Some(more) => self.memory.reservation.grow(more),
            None => self.memory.reservation.shrink(before - bytes),
        }
    }
}

#[async_trait]
impl TableProvider for ReservedMemTable {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn constraints(&self) -> Option<&Constraints> {
        self.table.constraints()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.table.get_column_default(column)
    }

    // Methods with expressions are written as `async_trait` would expand them, so that no future of ours holds any.
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
        self.table.scan(state, projection, filters, limit)
    }

    async fn insert_into(
        &self,
        _state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        op: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.schema().logically_equivalent_names_and_types(&input.schema())?;
        if op != InsertOp::Append {
            return not_impl_err!("{op} is not supported for table '{}' in memory", self.memory.table);
        }
        let sink =
            TableSink { schema: self.schema(), partitions: self.partitions.clone(), memory: Arc::clone(&self.memory) };
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), None)))
    }

    fn delete_from<'s, 'session, 'async_trait>(
        &'s self,
        state: &'session dyn Session,
        filters: Vec<Expr>,
    ) -> Planned<'async_trait>
    where
        's: 'async_trait,
        'session: 'async_trait,
        Self: 'async_trait,
    {
        let delete = self.table.delete_from(state, filters);
        Box::pin(async move {
            let deleted = delete.await;
            self.recount().await;
            deleted
        })
    }

    fn update<'s, 'session, 'async_trait>(
        &'s self,
        state: &'session dyn Session,
        assignments: Vec<(String, Expr)>,
        filters: Vec<Expr>,
    ) -> Planned<'async_trait>
    where
        's: 'async_trait,
        'session: 'async_trait,
        Self: 'async_trait,
    {
        let update = self.table.update(state, assignments, filters);
        Box::pin(async move {
            // The old and the new rows exist side by side for a while.
            let mut copy = Staged::new(&self.memory);
            copy.try_grow(self.memory.committed.load(Ordering::Relaxed))?;
            let updated = update.await;
            self.recount().await;
            updated
        })
    }
}

/// What the methods of a table that plan something return.
type Planned<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn ExecutionPlan>>> + Send + 'a>>;

/// Where an `INSERT` into a table in memory ends.
struct TableSink {
    schema: SchemaRef,
    partitions: Vec<PartitionData>,
    memory: Arc<TableMemory>,
}

#[async_trait]
impl DataSink for TableSink {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    async fn write_all(&self, rows: SendableRecordBatchStream, _context: &Arc<TaskContext>) -> Result<u64> {
        let (batches, staged) = collect(rows, Arc::clone(&self.memory)).await?;
        let count: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let mut shares = vec![vec![]; self.partitions.len()];
        for (number, batch) in batches.into_iter().enumerate() {
            shares[number % self.partitions.len()].push(batch);
        }
        // All locks first: a statement that is cancelled while it waits has added nothing.
        let mut partitions = Vec::with_capacity(self.partitions.len());
        for partition in &self.partitions {
            partitions.push(partition.write().await);
        }
        for (mut partition, mut share) in partitions.into_iter().zip(shares) {
            partition.append(&mut share);
        }
        staged.commit();
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
