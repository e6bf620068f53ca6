//! Windows whose frames end at the current row or a bounded number of rows later, run by DataFusion.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use arrow::compute::kernels::cmp::distinct;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::utils::evaluate_expressions_to_arrays;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use datafusion::physical_plan::spill::get_record_batch_memory_size;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::windows::BoundedWindowAggExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, InputOrderMode, PlanProperties};
use futures::StreamExt;
use overspill_join::memory::compact;
use parking_lot::Mutex;

use super::lean::LeanColumns;
use super::{explain, reserve};

/// DataFusion holds rows for its output and for its frames, and copies both while it adds a batch.
const COPIES: usize = 3;

/// Runs a window over rows without the texts that it does not read, and adds these texts back to its results.
pub(super) fn bounded(
    window: &BoundedWindowAggExec,
    partition: usize,
    context: Arc<TaskContext>,
    metrics: BaselineMetrics,
) -> Result<SendableRecordBatchStream> {
    let input = window.input().execute(partition, Arc::clone(&context))?;
    let rows = Arc::new(Mutex::new(Rows {
        waiting: VecDeque::new(),
        waiting_bytes: 0,
        kept_bytes: 0,
        reservation: reserve(context.memory_pool(), partition),
    }));
    let mut lean = LeanColumns::of(window);
    let mut boundaries = Boundaries::of(window);
    let lean_rows = {
        let rows = Arc::clone(&rows);
        input.map(move |batch| {
            let batch = compact(batch?)?;
            if batch.num_rows() == 0 {
                return Ok(batch);
            }
            let kept = if lean.keeps_views(&batch) { get_record_batch_memory_size(&batch) } else { 0 };
            let lean = lean.apply(&batch)?;
            let starts_partition = boundaries.starts_partition(&batch)?;
            rows.lock().push(batch, starts_partition, kept)?;
            Ok(lean)
        })
    };
    let lean_rows = Feed {
        properties: Arc::clone(window.input().properties()),
        rows: Mutex::new(Some(Box::pin(RecordBatchStreamAdapter::new(window.input().schema(), lean_rows)))),
    };
    let host = Arc::new(window.clone())
        .replace_children(vec![Arc::new(lean_rows)], ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep))?;
    let schema = window.schema();
    let width = window.input().schema().fields().len();
    let results = host.execute(partition, context)?;
    let output_schema = Arc::clone(&schema);
    let output = results.map(move |results| {
        let results = results?;
        let mut columns = rows.lock().pop(results.num_rows(), &output_schema)?;
        columns.extend_from_slice(&results.columns()[width..]);
        Ok(RecordBatch::try_new(Arc::clone(&output_schema), columns)?.record_output(&metrics))
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, output)))
}

/// The rows whose results DataFusion has not returned yet.
struct Rows {
    waiting: VecDeque<RecordBatch>,
    waiting_bytes: usize,
    /// Bytes of batches that went to DataFusion with texts: it keeps the texts until the partition of the window ends.
    kept_bytes: usize,
    reservation: MemoryReservation,
}

impl Rows {
    fn push(&mut self, batch: RecordBatch, starts_partition: bool, kept_bytes: usize) -> Result<()> {
        if starts_partition {
            self.kept_bytes = 0;
        }
        self.kept_bytes += kept_bytes;
        self.waiting_bytes += get_record_batch_memory_size(&batch);
        self.waiting.push_back(batch);
        let bytes = self.bytes();
        self.reservation.try_resize(bytes).map_err(|error| {
            let held =
                if self.kept_bytes > self.waiting_bytes { "the texts of a partition" } else { "the rows of its frame" };
            explain(error, bytes, held)
        })
    }

    fn bytes(&self) -> usize {
        COPIES * self.waiting_bytes + self.kept_bytes
    }

    /// Removes and returns the columns of the first `count` rows.
    fn pop(&mut self, count: usize, schema: &SchemaRef) -> Result<Vec<ArrayRef>> {
        let mut taken = vec![];
        let mut missing = count;
        while missing > 0 {
            let Some(batch) = self.waiting.pop_front() else {
                return internal_err!("a window returned more rows than it received, for {schema}");
            };
            self.waiting_bytes -= get_record_batch_memory_size(&batch);
            let rows = missing.min(batch.num_rows());
            taken.push(batch.slice(0, rows));
            if rows < batch.num_rows() {
                let rest = compact(batch.slice(rows, batch.num_rows() - rows))?;
                self.waiting_bytes += get_record_batch_memory_size(&rest);
                self.waiting.push_front(rest);
            }
            missing -= rows;
        }
        self.reservation.try_resize(self.bytes().min(self.reservation.size()))?;
        match taken.as_slice() {
            [] => Ok(vec![]),
            [batch] => Ok(batch.columns().to_vec()),
            [first, ..] => Ok(concat_batches(&first.schema(), &taken)?.columns().to_vec()),
        }
    }
}

/// Detects where partitions of a window begin in an input that is ordered by partition.
struct Boundaries {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    /// The keys of the last row so far.
    last_keys: Vec<ArrayRef>,
}

impl Boundaries {
    fn of(window: &BoundedWindowAggExec) -> Self {
        let is_sorted = window.input_order_mode == InputOrderMode::Sorted;
        let keys = window.window_expr().first().filter(|_| is_sorted).map(|function| function.partition_by().to_vec());
        Self { keys: keys.unwrap_or_default(), last_keys: vec![] }
    }

    /// Whether the last row of a batch belongs to another partition than the last row of the batch before.
    fn starts_partition(&mut self, batch: &RecordBatch) -> Result<bool> {
        let last = batch.slice(batch.num_rows() - 1, 1);
        let keys = evaluate_expressions_to_arrays(&self.keys, &last)?;
        let before = std::mem::replace(&mut self.last_keys, keys);
        let mut changed = self.last_keys.iter().zip(&before).map(|(key, before)| Ok(distinct(key, before)?.value(0)));
        changed.try_fold(false, |any, changed: Result<bool>| Ok(any | changed?))
    }
}

/// Hands the rows of a window's input to DataFusion's operator.
struct Feed {
    properties: Arc<PlanProperties>,
    /// The stream, until DataFusion's operator takes it.
    rows: Mutex<Option<SendableRecordBatchStream>>,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}

impl DisplayAs for Feed {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Feed")
    }
}

impl ExecutionPlan for Feed {
    fn name(&self) -> &str {
        "Feed"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.rows.lock().take().ok_or_else(|| internal_datafusion_err!("the rows of a window were asked for twice"))
    }
}
