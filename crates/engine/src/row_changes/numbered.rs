//! The numbered rows of a table in memory, as of the planning of a statement.

use std::pin::Pin;
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result;
use datafusion::datasource::TableType;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use tokio::sync::OnceCell;

use super::table::ChangeableTable;
use crate::memory::{LockedRows, lock};

/// The column of row numbers, after those of the table.
pub(crate) const ROW_NUMBER: &str = "__overspill_row_number";

/// The rows of a table as they were at one moment, by partition.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub partitions: Vec<Vec<RecordBatch>>,
}

impl Snapshot {
    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.partitions.iter().flatten().map(RecordBatch::num_rows).sum()
    }

    /// Whether the table still has these rows.
    pub fn is_current(&self, table: &LockedRows<'_>) -> bool {
        self.partitions.len() == table.len()
            && self.partitions.iter().zip(table).all(|(then, now)| {
                then.len() == now.len() && then.iter().zip(now.iter()).all(|(then, now)| same(then, now))
            })
    }
}

/// Whether two batches are identical. Batches with the same arrays are, as arrays never change.
fn same(a: &RecordBatch, b: &RecordBatch) -> bool {
    a.num_rows() == b.num_rows()
        && a.num_columns() == b.num_columns()
        && a.columns().iter().zip(b.columns()).all(|(a, b)| Arc::ptr_eq(a, b))
}

/// A table that returns the rows of another one with the additional column [`ROW_NUMBER`].
///
/// It takes the rows when the first scan is planned. They stay the same for every scan and for the sink.
#[derive(Debug, Clone)]
pub(crate) struct NumberedRows {
    table: ChangeableTable,
    schema: SchemaRef,
    snapshot: Arc<OnceCell<Arc<Snapshot>>>,
}

impl NumberedRows {
    pub fn new(table: ChangeableTable) -> Self {
        let mut fields = table.schema().fields().to_vec();
        fields.push(Arc::new(Field::new(ROW_NUMBER, DataType::UInt64, false)));
        Self { table, schema: Arc::new(Schema::new(fields)), snapshot: Arc::default() }
    }

    /// The table with these rows.
    pub fn table(&self) -> &ChangeableTable {
        &self.table
    }

    /// The rows, once a scan has been planned.
    pub(super) fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.get().cloned()
    }

    async fn take_snapshot(&self) -> Arc<Snapshot> {
        let take = || async {
            // Takes all locks first, so that no statement is seen half done.
            let mut locked = vec![];
            for partition in self.table.partitions() {
                locked.push(partition.read().await);
            }
            Arc::new(Snapshot { partitions: locked.iter().map(|partition| partition.to_vec()).collect() })
        };
        Arc::clone(self.snapshot.get_or_init(take).await)
    }

    /// Locks the table for a change.
    pub(super) async fn lock(&self) -> LockedRows<'_> {
        lock(self.table.partitions()).await
    }
}

#[async_trait]
impl TableProvider for NumberedRows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    // Written as `async_trait` would expand it, so that no future holds expressions: see `ReservedMemTable`.
    fn scan<'s, 'session, 'columns, 'filters, 'async_trait>(
        &'s self,
        _state: &'session dyn Session,
        projection: Option<&'columns Vec<usize>>,
        _filters: &'filters [Expr],
        limit: Option<usize>,
    ) -> Pin<Box<dyn Future<Output = Result<Arc<dyn ExecutionPlan>>> + Send + 'async_trait>>
    where
        's: 'async_trait,
        'session: 'async_trait,
        'columns: 'async_trait,
        'filters: 'async_trait,
        Self: 'async_trait,
    {
        let projection = projection.cloned();
        Box::pin(async move {
            let snapshot = self.take_snapshot().await;
            let mut first = 0;
            let mut streams: Vec<Arc<dyn PartitionStream>> = vec![];
            for (partition, batches) in snapshot.partitions.iter().enumerate() {
                let (schema, snapshot) = (self.schema(), Arc::clone(&snapshot));
                streams.push(Arc::new(NumberedPartition { schema, snapshot, partition, first }));
                first += batches.iter().map(RecordBatch::num_rows).sum::<usize>();
            }
            let scan = StreamingTableExec::try_new(self.schema(), streams, projection.as_ref(), vec![], false, limit)?;
            Ok(Arc::new(scan) as Arc<dyn ExecutionPlan>)
        })
    }
}

/// The rows of a partition with their numbers, starting at `first`.
#[derive(Debug)]
struct NumberedPartition {
    schema: SchemaRef,
    snapshot: Arc<Snapshot>,
    partition: usize,
    first: usize,
}

impl PartitionStream for NumberedPartition {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.schema);
        let mut next = self.first as u64;
        // Batches are cheap to clone, and numbers are made on demand.
        let batches = self.snapshot.partitions[self.partition].clone();
        let numbered = batches.into_iter().map(move |batch| {
            let end = next + batch.num_rows() as u64;
            let numbers = UInt64Array::from_iter_values(next..end);
            next = end;
            let mut columns = batch.columns().to_vec();
            columns.push(Arc::new(numbers));
            Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), futures::stream::iter(numbered)))
    }
}
