//! The sink of a `DELETE` or an `UPDATE` of a table in memory.

use std::fmt::Formatter;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, BooleanBufferBuilder, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{cast, filter_record_batch, interleave, not};
use arrow::datatypes::{SchemaRef, UInt64Type};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::datasource::TableType;
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::StreamExt;
use overspill_join::memory::{HeldMemory, compact};

use super::numbered::{NumberedRows, Snapshot};

/// The change to the rows with the numbers that a query returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowChange {
    /// The rows are removed. The query returns only their numbers.
    Delete,
    /// The rows get new values in these columns of the table. The query returns the values in this order, followed by the
    /// number.
    Update(Vec<usize>),
}

impl RowChange {
    fn name(&self) -> &'static str {
        match self {
            Self::Delete => "DELETE",
            Self::Update(_) => "UPDATE",
        }
    }
}

/// The target of a statement: "inserting" row numbers into it changes those rows of the table.
#[derive(Debug)]
pub(crate) struct ChangedRows {
    pub rows: NumberedRows,
    pub change: RowChange,
}

#[async_trait]
impl TableProvider for ChangedRows {
    fn schema(&self) -> SchemaRef {
        self.rows.table().schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn scan<'s, 'session, 'columns, 'filters, 'async_trait>(
        &'s self,
        _state: &'session dyn Session,
        _projection: Option<&'columns Vec<usize>>,
        _filters: &'filters [Expr],
        _limit: Option<usize>,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Arc<dyn ExecutionPlan>>> + Send + 'async_trait>>
    where
        's: 'async_trait,
        'session: 'async_trait,
        'columns: 'async_trait,
        'filters: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async { internal_err!("The target of a change is not read") })
    }

    async fn insert_into(
        &self,
        _state: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        _op: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let sink = RowChangeSink { rows: self.rows.clone(), change: self.change.clone(), schema: input.schema() };
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), None)))
    }
}

#[derive(Debug)]
struct RowChangeSink {
    rows: NumberedRows,
    change: RowChange,
    /// The schema of the query.
    schema: SchemaRef,
}

impl DisplayAs for RowChangeSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (table={}", self.change.name(), self.rows.table().name)?;
        if let RowChange::Update(columns) = &self.change {
            let schema = self.rows.table().schema();
            let names: Vec<_> = columns.iter().map(|column| schema.field(*column).name().as_str()).collect();
            write!(f, ", columns=[{}]", names.join(", "))?;
        }
        write!(f, ")")
    }
}

#[async_trait]
impl DataSink for RowChangeSink {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    async fn write_all(&self, mut changes: SendableRecordBatchStream, context: &Arc<TaskContext>) -> Result<u64> {
        let table = self.rows.table();
        let consumer = MemoryConsumer::new(format!("{} of table '{}'", self.change.name(), table.name));
        // If the optimizer found that no row can match there is no scan, and thus no snapshot and no changes.
        let snapshot = self.rows.snapshot();
        let rows = snapshot.as_ref().map_or(0, |snapshot| snapshot.rows());
        let mut collected = Changes::new(rows, &self.change, consumer.register(context.memory_pool()))?;
        while let Some(batch) = changes.next().await.transpose()? {
            collected.add(batch, &table.name)?;
        }
        drop(changes);
        let (Some(snapshot), true) = (snapshot, collected.count > 0) else { return Ok(0) };

        let locked = self.rows.lock().await;
        if !snapshot.is_current(&locked) {
            return exec_err!(
                "Table '{}' was changed by another statement while this {} ran, which has changed nothing. Run it again.",
                table.name,
                self.change.name()
            );
        }
        match &self.change {
            RowChange::Delete => {
                let (new, removed) = collected.delete(&snapshot, table.has_keys())?;
                table.replace(locked, new, &removed, &[])?;
            }
            RowChange::Update(columns) => {
                let new = collected.update(&snapshot, columns, &table.schema())?;
                table.replace(locked, new, &[], columns)?;
            }
        }
        Ok(collected.count as u64)
    }
}

/// Marks a row that keeps its values.
const UNCHANGED: (u32, u32) = (u32::MAX, u32::MAX);

/// The numbers of the rows to change, and their new values.
struct Changes {
    /// One bit for each row of the table: whether it is changed.
    changed: BooleanBufferBuilder,
    /// For an `UPDATE`: for each row of the table, the batch of `values` and the row in it with the new values.
    sources: Vec<(u32, u32)>,
    values: Vec<RecordBatch>,
    held: HeldMemory,
    count: usize,
    memory: MemoryReservation,
}

impl Changes {
    fn new(rows: usize, change: &RowChange, memory: MemoryReservation) -> Result<Self> {
        let is_update = matches!(change, RowChange::Update(_));
        let numbers = if is_update { rows } else { 0 };
        memory.try_grow(rows.div_ceil(8) + numbers * size_of::<(u32, u32)>())?;
        let mut changed = BooleanBufferBuilder::new(rows);
        changed.append_n(rows, false);
        let sources = vec![UNCHANGED; numbers];
        Ok(Self { changed, sources, values: vec![], held: HeldMemory::default(), count: 0, memory })
    }

    /// Adds a batch of the query. Its last column holds row numbers.
    fn add(&mut self, mut batch: RecordBatch, table: &str) -> Result<()> {
        let last = batch.num_columns().checked_sub(1).map(|last| batch.remove_column(last));
        let numbers = last.as_ref().and_then(|numbers| numbers.as_primitive_opt::<UInt64Type>());
        let Some(numbers) = numbers.filter(|numbers| numbers.null_count() == 0) else {
            return internal_err!("A change of rows without their numbers");
        };
        let number = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        for (source, row) in numbers.values().iter().enumerate() {
            let row = *row as usize;
            let again = self.changed.get_bit(row);
            if again && !self.sources.is_empty() {
                return exec_err!(
                    "UPDATE of table '{table}' failed and has changed nothing: a row has several partners in the join, and \
                     it is not said which of them gives the values. Write the join so that each row has one, or SET a \
                     column to a subquery with an aggregate."
                );
            }
            if again {
                continue;
            }
            self.changed.set_bit(row, true);
            self.count += 1;
            if let Some(place) = self.sources.get_mut(row) {
                *place = (number, source as u32);
            }
        }
        if !self.sources.is_empty() && batch.num_columns() > 0 && batch.num_rows() > 0 {
            let batch = compact(batch)?;
            self.memory.try_grow(self.held.add(&batch))?;
            self.values.push(batch);
        }
        Ok(())
    }

    /// Whether each row of a batch is changed. The batch's first row has the number `first`.
    fn changed_in(&mut self, first: usize, batch: &RecordBatch) -> BooleanArray {
        let bits = (first..first + batch.num_rows()).map(|row| self.changed.get_bit(row));
        BooleanArray::new(bits.collect::<BooleanBuffer>(), None)
    }

    /// The rows that stay, by partition, and the removed rows if requested.
    fn delete(&mut self, table: &Snapshot, ask_removed: bool) -> Result<(Vec<Vec<RecordBatch>>, Vec<RecordBatch>)> {
        let (mut kept, mut removed, mut first) = (vec![], vec![], 0);
        for partition in &table.partitions {
            let mut batches = vec![];
            for batch in partition {
                let changed = self.changed_in(first, batch);
                first += batch.num_rows();
                match changed.true_count() {
                    0 => batches.push(batch.clone()),
                    count => {
                        if ask_removed {
                            removed.push(filter_record_batch(batch, &changed)?);
                        }
                        if count < batch.num_rows() {
                            batches.push(compact(filter_record_batch(batch, &not(&changed)?)?)?);
                        }
                    }
                }
            }
            kept.push(batches);
        }
        Ok((kept, removed))
    }

    /// All rows with their new values, by partition.
    fn update(&mut self, table: &Snapshot, columns: &[usize], schema: &SchemaRef) -> Result<Vec<Vec<RecordBatch>>> {
        let values = columns.iter().enumerate().map(|(position, column)| {
            let field = schema.field(*column);
            let values = self.values.iter().map(|batch| {
                let values = batch.column(position);
                if !field.is_nullable() && values.null_count() > 0 {
                    return exec_err!(
                        "UPDATE failed and has changed nothing: column '{}' is NOT NULL, and its new value is null in at \
                         least one row",
                        field.name()
                    );
                }
                Ok(if values.data_type() == field.data_type() {
                    Arc::clone(values)
                } else {
                    cast(values, field.data_type())?
                })
            });
            values.collect::<Result<Vec<ArrayRef>>>()
        });
        let values = values.collect::<Result<Vec<_>>>()?;
        let (mut new, mut first) = (vec![], 0);
        for partition in &table.partitions {
            let mut batches = vec![];
            for batch in partition {
                let sources = &self.sources[first..first + batch.num_rows()];
                first += batch.num_rows();
                let changed = sources.iter().any(|source| *source != UNCHANGED);
                batches.push(if changed { updated(batch, sources, columns, &values)? } else { batch.clone() });
            }
            new.push(batches);
        }
        Ok(new)
    }
}

/// A batch of the table with the values that `sources` names in `columns`.
fn updated(
    batch: &RecordBatch,
    sources: &[(u32, u32)],
    columns: &[usize],
    values: &[Vec<ArrayRef>],
) -> Result<RecordBatch> {
    // The arrays to choose from: the batch's own, and those of the query that hold values for rows of this batch.
    let mut used: Vec<u32> = sources.iter().filter(|source| **source != UNCHANGED).map(|source| source.0).collect();
    used.sort_unstable();
    used.dedup();
    let choice = sources.iter().enumerate().map(|(row, source)| match *source {
        UNCHANGED => (0, row),
        (number, row) => (1 + used.partition_point(|other| *other < number), row as usize),
    });
    let choice: Vec<(usize, usize)> = choice.collect();
    let mut arrays = batch.columns().to_vec();
    for (column, values) in columns.iter().zip(values) {
        let mut from: Vec<&dyn Array> = vec![batch.column(*column)];
        from.extend(used.iter().map(|number| values[*number as usize].as_ref()));
        arrays[*column] = interleave(&from, &choice)?;
    }
    Ok(compact(RecordBatch::try_new(batch.schema(), arrays)?)?)
}
