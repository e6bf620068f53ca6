//! Windows whose frames reach past the current row: a partition of the window is computed when all its rows are there.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::{SortColumn, concat, concat_batches};
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::utils::evaluate_partition_ranges;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use datafusion::physical_plan::spill::get_record_batch_memory_size;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::WindowAggExec;
use futures::StreamExt;
use overspill_join::memory::compact;

use super::{explain, reserve};

/// Bytes per row of a window function's result. A text result takes more.
const RESULT_BYTES: usize = 16;

/// Rows are held twice while several batches are concatenated.
const COPIES: usize = 2;

/// Runs a window over an input that is ordered by the partitions of the window.
pub(super) fn whole_partitions(
    window: &WindowAggExec,
    partition: usize,
    context: Arc<TaskContext>,
    metrics: BaselineMetrics,
) -> Result<SendableRecordBatchStream> {
    let schema = window.schema();
    let stream = WholePartitions {
        input_schema: window.input().schema(),
        schema: Arc::clone(&schema),
        functions: window.window_expr().to_vec(),
        keys: window.partition_by_sort_keys()?,
        batch_rows: context.session_config().batch_size(),
        reservation: reserve(context.memory_pool(), partition),
        input: Some(window.input().execute(partition, context)?),
        held: vec![],
        held_bytes: 0,
        last_keys: vec![],
        output: VecDeque::new(),
        metrics,
    };
    let batches = futures::stream::try_unfold(stream, |mut stream| async move {
        let batch = stream.next().await?;
        Ok(batch.map(|batch| (batch, stream)))
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
}

struct WholePartitions {
    /// `None` once it has ended.
    input: Option<SendableRecordBatchStream>,
    input_schema: SchemaRef,
    schema: SchemaRef,
    functions: Vec<Arc<dyn WindowExpr>>,
    /// The `PARTITION BY` expressions of the window.
    keys: Vec<PhysicalSortExpr>,
    batch_rows: usize,
    reservation: MemoryReservation,
    /// Rows of the partition that may still grow.
    held: Vec<RecordBatch>,
    held_bytes: usize,
    /// The keys of the last row so far.
    last_keys: Vec<ArrayRef>,
    /// The computed result, returned in slices of one batch. Its memory is reserved until the last slice has been returned.
    output: VecDeque<RecordBatch>,
    metrics: BaselineMetrics,
}

impl WholePartitions {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.output.pop_front() {
                return Ok(Some(batch.record_output(&self.metrics)));
            }
            let Some(input) = &mut self.input else {
                self.reservation.free();
                return Ok(None);
            };
            match input.next().await.transpose()? {
                Some(batch) if batch.num_rows() == 0 => {}
                Some(batch) => self.take(compact(batch)?)?,
                None => {
                    self.input = None;
                    let rows = std::mem::take(&mut self.held);
                    self.held_bytes = 0;
                    self.compute(rows)?;
                }
            }
        }
    }

    /// Adds a batch, and computes the partitions that it completes.
    fn take(&mut self, batch: RecordBatch) -> Result<()> {
        let mut rest = batch.clone();
        if let Some(complete) = self.start_of_last_partition(&batch)? {
            let mut rows = std::mem::take(&mut self.held);
            self.held_bytes = 0;
            rows.push(batch.slice(0, complete));
            self.compute(rows)?;
            rest = compact(batch.slice(complete, batch.num_rows() - complete))?;
        }
        self.held_bytes += get_record_batch_memory_size(&rest);
        self.held.push(rest);
        self.reserve()
    }

    /// The row of a batch at which its last partition begins. `None` if that partition continues the last batch's, or is the
    /// first of all.
    fn start_of_last_partition(&mut self, batch: &RecordBatch) -> Result<Option<usize>> {
        let rows = batch.num_rows();
        let evaluate = |key: &PhysicalSortExpr| key.evaluate_to_sort_column(batch);
        let mut columns = self.keys.iter().map(evaluate).collect::<Result<Vec<SortColumn>>>()?;
        let last_keys = columns.iter().map(|column| column.values.slice(rows - 1, 1)).collect();
        let before = std::mem::replace(&mut self.last_keys, last_keys);
        for (column, before) in columns.iter_mut().zip(&before) {
            column.values = concat(&[before, &column.values])?;
        }
        let before = usize::from(!before.is_empty());
        let partitions = evaluate_partition_ranges(before + rows, &columns)?;
        let start = partitions.last().map_or(0, |partition| partition.start);
        Ok((start > 0).then(|| start - before))
    }

    /// Computes complete partitions.
    fn compute(&mut self, batches: Vec<RecordBatch>) -> Result<()> {
        let _timer = self.metrics.elapsed_compute().timer();
        let rows = concat_batches(&self.input_schema, &batches)?;
        drop(batches);
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let evaluate = |key: &PhysicalSortExpr| key.evaluate_to_sort_column(&rows);
        let keys = self.keys.iter().map(evaluate).collect::<Result<Vec<_>>>()?;
        let partitions = evaluate_partition_ranges(rows.num_rows(), &keys)?;
        let mut columns = rows.columns().to_vec();
        for function in &self.functions {
            let results =
                partitions.iter().map(|partition| function.evaluate(&rows.slice(partition.start, partition.len())));
            let results: Vec<ArrayRef> = results.collect::<Result<_>>()?;
            columns.push(concat(&results.iter().map(AsRef::as_ref).collect::<Vec<_>>())?);
        }
        let computed = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        let starts = (0..computed.num_rows()).step_by(self.batch_rows);
        self.output.extend(starts.map(|start| computed.slice(start, self.batch_rows.min(computed.num_rows() - start))));
        self.reserve()
    }

    /// Reserves memory for the rows that are held and for computing their results.
    fn reserve(&self) -> Result<()> {
        let rows: usize = self.held.iter().map(RecordBatch::num_rows).sum();
        let output = self.output.front().map_or(0, get_record_batch_memory_size);
        let bytes = COPIES * self.held_bytes + rows * self.functions.len() * RESULT_BYTES + output;
        self.reservation.try_resize(bytes).map_err(|error| explain(error, bytes, "all rows of a partition"))
    }
}
