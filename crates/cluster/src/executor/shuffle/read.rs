//! The plan node that reads blocks.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use ballista_core::execution_plans::ShuffleReaderExec;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricValue, MetricsSet, RecordOutput, Time,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::stream::{self, StreamExt, TryStreamExt};
use overspill_codec::BlockReader;

use super::block_schema;
use crate::error::{LOST, failed};
use crate::settings::with_settings;

/// Reads what [`BlockStage`](super::BlockStage) has written for a task, through Ballista's reader of the files.
///
/// To the plan it is one node in place of Ballista's, as metrics of a task go by the positions of nodes: so the reader below is no child.
#[derive(Debug)]
pub struct BlockReadExec {
    reader: Arc<ShuffleReaderExec>,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl BlockReadExec {
    /// Reads blocks where `planned` would read rows. `prepare` is given Ballista's reader of the blocks.
    ///
    /// # Errors
    /// Fails if Ballista's reader cannot be made.
    pub fn try_new(
        planned: &ShuffleReaderExec,
        prepare: impl FnOnce(&ShuffleReaderExec) -> ShuffleReaderExec,
    ) -> Result<Self> {
        let partitioning = planned.properties().output_partitioning().clone();
        let reader =
            ShuffleReaderExec::try_new(planned.stage_id, planned.partition.clone(), block_schema(), partitioning)?;
        Ok(Self {
            reader: Arc::new(prepare(&reader)),
            schema: planned.schema(),
            properties: Arc::clone(planned.properties()),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }
}

/// Decompresses the blocks of one partition.
struct Decoder {
    blocks: BlockReader,
    /// Rows that a batch has at most.
    batch_size: usize,
    time: Time,
}

impl Decoder {
    /// The rows of the blocks that a batch holds.
    fn rows(&mut self, batch: &RecordBatch) -> Result<Vec<RecordBatch>> {
        let _timer = self.time.timer();
        let Some(blocks) = batch.columns().first().and_then(|column| column.as_binary_opt::<i64>()) else {
            return internal_err!("{} arrived for blocks", batch.schema());
        };
        let mut batches = Vec::new();
        for block in blocks.iter().flatten() {
            // Another attempt reads blocks that are written anew.
            let rows = self.blocks.read(block).map_err(|error| {
                failed(format!("{LOST}rows of another task have changed since they were written: {error}"))
            })?;
            let starts = (0..rows.num_rows()).step_by(self.batch_size);
            batches.extend(starts.map(|start| rows.slice(start, self.batch_size.min(rows.num_rows() - start))));
        }
        Ok(batches)
    }
}

impl DisplayAs for BlockReadExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "BlockReadExec: ")?;
        self.reader.fmt_as(format, f)
    }
}

impl ExecutionPlan for BlockReadExec {
    fn name(&self) -> &str {
        "BlockReadExec"
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
        let config = context.session_config();
        let mut decoder = Decoder {
            blocks: BlockReader::new(Arc::clone(&self.schema)),
            batch_size: config.batch_size(),
            time: MetricBuilder::new(&self.metrics).subset_time("decompress_time", partition),
        };
        // A row of the reader is a block: it must pass on each, not collect a batch of them.
        let one_by_one = with_settings(&context, config.clone().with_batch_size(1));
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let blocks = self.reader.execute(partition, one_by_one)?;
        let rows = blocks.map(move |blocks| decoder.rows(&blocks?).map(|rows| stream::iter(rows).map(Ok)));
        let rows = rows.try_flatten().map_ok(move |rows| rows.record_output(&baseline));
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows)))
    }

    /// What Ballista's reader has counted, but rows in place of blocks.
    fn metrics(&self) -> Option<MetricsSet> {
        let mut metrics = self.metrics.clone_inner();
        let of_blocks = self.reader.metrics().unwrap_or_default();
        let fetched = of_blocks.iter().filter(|metric| {
            use MetricValue::{ElapsedCompute, EndTimestamp, OutputBatches, OutputBytes, OutputRows, StartTimestamp};
            let value = metric.value();
            !matches!(
                value,
                OutputRows(_)
                    | OutputBytes(_)
                    | OutputBatches(_)
                    | ElapsedCompute(_)
                    | StartTimestamp(_)
                    | EndTimestamp(_)
            )
        });
        fetched.for_each(|metric| metrics.push(Arc::clone(metric)));
        Some(metrics)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, LargeBinaryArray};
    use overspill_codec::BlockWriter;

    use super::*;

    #[test]
    fn blocks_become_batches_and_a_changed_one_is_noticed() {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..2500));
        let rows = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
        let block = BlockWriter::default().write(&rows).unwrap().to_vec();
        let mut decoder = Decoder { blocks: BlockReader::new(rows.schema()), batch_size: 1000, time: Time::new() };
        let mut decode = |block: &[u8]| {
            let blocks = Arc::new(LargeBinaryArray::from_iter_values([block]));
            decoder.rows(&RecordBatch::try_new(block_schema(), vec![blocks]).unwrap())
        };
        let batches = decode(&block).unwrap();
        assert_eq!(batches, [rows.slice(0, 1000), rows.slice(1000, 1000), rows.slice(2000, 500)]);
        for position in 0..block.len() {
            let mut changed = block.clone();
            changed[position] ^= 4;
            let error = decode(&changed).unwrap_err().to_string();
            assert!(error.contains(LOST), "{position}: {error}");
        }
        assert!(decoder.rows(&rows).is_err());
    }
}
