//! The plan node that reads what tasks of another stage have written.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use ballista_core::execution_plans::ShuffleReaderExec;
use ballista_core::serde::scheduler::PartitionLocation;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::Stream;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use overspill::OutputBatches;

use super::fetch::{Content, Counters, Fetch};
use crate::executor::connections::Connections;

/// How many tasks' rows are read at a time for one partition. Each has some 5 MiB on its way, beside the memory pool.
const AT_ONCE: usize = 2;

/// Reads what tasks of another stage have written, a batch at a time.
///
/// It stands for Ballista's [`ShuffleReaderExec`], which holds all that one task has sent in memory before it gives the first row, beside
/// the memory pool.
#[derive(Debug)]
pub struct FetchExec {
    /// By partition, where its rows lie.
    locations: Vec<Vec<PartitionLocation>>,
    /// Whether each partition is all rows, which lie where the first one says.
    broadcast: bool,
    fetch: Arc<Fetch>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl FetchExec {
    /// Reads in place of `planned`. `directory` has the rows of this executor, and `connections` lead to others. What hash
    /// partitionings have sent is blocks if `compressed`.
    pub fn new(
        planned: &ShuffleReaderExec,
        directory: String,
        connections: Arc<Connections>,
        compressed: bool,
    ) -> Self {
        let partitioned = planned.partition.iter().flatten().next().is_some_and(|location| location.is_sort_shuffle);
        let content = if compressed && partitioned { Content::Blocks } else { Content::Rows };
        Self {
            locations: planned.partition.clone(),
            broadcast: planned.broadcast,
            fetch: Arc::new(Fetch { directory, connections, schema: planned.schema(), content }),
            properties: Arc::clone(planned.properties()),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }
}

/// The same rows in batches of up to `size`, which [`OutputBatches`] keeps small in bytes too: the memory pool does not know of them.
fn in_batches(
    rows: BoxStream<'static, Result<RecordBatch>>,
    schema: &SchemaRef,
    size: usize,
) -> impl Stream<Item = Result<RecordBatch>> + use<> {
    let rows = rows.map_ok(move |batch| {
        let starts = (0..batch.num_rows()).step_by(size);
        stream::iter(
            starts.map(move |start| Ok::<_, DataFusionError>(batch.slice(start, size.min(batch.num_rows() - start)))),
        )
    });
    let batches = OutputBatches::new(schema, size);
    stream::try_unfold((rows.try_flatten().fuse(), batches), |(mut rows, mut batches)| async move {
        loop {
            if let Some(batch) = batches.next_full() {
                return Ok(Some((batch, (rows, batches))));
            }
            match rows.try_next().await? {
                Some(batch) => batches.push(batch)?,
                None if batches.is_empty() => return Ok(None),
                None => batches.finish()?,
            }
        }
    })
}

impl DisplayAs for FetchExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        let tasks: usize = self.locations.iter().map(Vec::len).sum();
        write!(f, "FetchExec: content={:?}, partitions={}, pieces={tasks}", self.fetch.content, self.locations.len())
    }
}

impl ExecutionPlan for FetchExec {
    fn name(&self) -> &str {
        "FetchExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let number = if self.broadcast { 0 } else { partition };
        let locations = self.locations.get(number);
        let mut locations =
            locations.cloned().ok_or_else(|| internal_datafusion_err!("no task has written partition {partition}"))?;
        // Not all tasks begin with the same executor.
        let first = partition.checked_rem(locations.len()).unwrap_or_default();
        locations.rotate_left(first);
        let counters = Counters {
            local: MetricBuilder::new(&self.metrics).counter("local_pieces", partition),
            remote: MetricBuilder::new(&self.metrics).counter("remote_pieces", partition),
            decompression: MetricBuilder::new(&self.metrics).subset_time("decompress_time", partition),
        };
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let size = context.session_config().batch_size();
        let fetch = Arc::clone(&self.fetch);
        let pieces = stream::iter(locations)
            .map(move |location| Arc::clone(&fetch).rows(location, Arc::clone(&context), counters.clone()))
            .flatten_unordered(AT_ONCE);
        let rows = in_batches(pieces.boxed(), &self.schema(), size).map_ok(move |rows| rows.record_output(&baseline));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    fn rows(numbers: std::ops::Range<i64>) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
        RecordBatch::try_from_iter([("n", numbers)]).unwrap()
    }

    #[tokio::test]
    async fn large_batches_are_cut_and_small_ones_joined() {
        let of = async |batches: Vec<Result<RecordBatch>>| {
            in_batches(stream::iter(batches).boxed(), &rows(0..0).schema(), 1000).try_collect::<Vec<_>>().await
        };
        let small = (0..30).map(|start| Ok(rows(start * 100..start * 100 + 100)));
        let read = of(std::iter::once(Ok(rows(0..2000))).chain(small).collect()).await.unwrap();
        assert!(read.iter().all(|batch| batch.num_rows() == 1000) && read.len() == 5, "{read:?}");
        let all = arrow_select::concat::concat_batches(&rows(0..0).schema(), &read).unwrap();
        assert_eq!(all.slice(2000, 3000), rows(0..3000));
        assert_eq!(of(vec![]).await.unwrap(), []);
        assert!(of(vec![Ok(rows(0..1)), Err(DataFusionError::Execution("lost".into()))]).await.is_err());
    }

    #[tokio::test]
    async fn wide_rows_are_not_collected() {
        let wide = |number: usize| {
            let texts: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(100_000); 10]));
            let numbers: ArrayRef = Arc::new(Int64Array::from(vec![number as i64; 10]));
            RecordBatch::try_from_iter([("t", texts), ("n", numbers)]).unwrap()
        };
        let batches: Vec<_> = (0..50).map(wide).collect();
        let arriving = stream::iter(batches.clone().into_iter().map(Ok)).boxed();
        let read: Vec<_> = in_batches(arriving, &batches[0].schema(), 8192).try_collect().await.unwrap();
        assert!(read.iter().all(|batch| batch.get_array_memory_size() < 6 << 20), "{}", read.len());
        let schema = batches[0].schema();
        let all = |batches: &[RecordBatch]| arrow_select::concat::concat_batches(&schema, batches).unwrap();
        assert_eq!(all(&read), all(&batches));
    }
}
