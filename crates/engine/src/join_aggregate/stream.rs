//! One output stream: one row.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use datafusion::physical_plan::stream::{EmptyRecordBatchStream, RecordBatchStreamAdapter};
use futures::StreamExt;
use overspill_join::hybrid::PairAggregation;

use crate::fused_aggregate::Accumulators;

/// Reads a partition of a join's output, aggregates it, and adds the pairs that kernels have aggregated.
pub(super) struct JoinAggregateStream {
    pairs: SendableRecordBatchStream,
    columns: Vec<usize>,
    accumulators: Accumulators,
    /// The aggregates of kernels; complete when the join's stream has ended.
    aggregation: Arc<PairAggregation>,
    baseline: BaselineMetrics,
}

impl JoinAggregateStream {
    pub(super) fn new(
        aggregate: &Arc<AggregateExec>,
        columns: &[usize],
        pairs: SendableRecordBatchStream,
        aggregation: Arc<PairAggregation>,
        baseline: BaselineMetrics,
    ) -> Result<Self> {
        let (columns, accumulators) = (columns.to_vec(), Accumulators::new(aggregate)?);
        Ok(Self { pairs, columns, accumulators, aggregation, baseline })
    }

    pub(super) fn into_stream(self) -> SendableRecordBatchStream {
        let schema = self.accumulators.schema();
        Box::pin(RecordBatchStreamAdapter::new(schema, futures::stream::once(self.run())))
    }

    async fn run(mut self) -> Result<RecordBatch> {
        let elapsed = self.baseline.elapsed_compute().clone();
        while let Some(batch) = self.pairs.next().await {
            let batch = batch?;
            let _timer = elapsed.timer();
            self.accumulators.take(&batch.project(&self.columns)?)?;
        }
        // The join may free its memory.
        self.pairs = Box::pin(EmptyRecordBatchStream::new(self.pairs.schema()));
        let _timer = elapsed.timer();
        self.accumulators.merge(self.aggregation.selection(), &self.aggregation.take())?;
        self.accumulators.finish().record_output(&self.baseline)
    }
}
