//! The plan nodes between ranks.

mod away;
mod broadcast;
mod gather;
mod lanes;
mod shuffle;
mod summed;
mod write;

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, Time};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};
use futures::stream::{BoxStream, StreamExt, select_all};
use futures::{Stream, TryStreamExt};
use overspill_exchange::{Exchanged, Levels};

pub use away::AwayExec;
pub use broadcast::RankBroadcastExec;
pub use gather::RankGatherExec;
pub use shuffle::RankShuffleExec;
pub use summed::SummedExec;
pub use write::{RankCommitExec, RankStageExec};

use crate::error::cause_in;

/// How rows travel, for all exchanges of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// The number of the exchange in its query.
    pub number: u64,
    /// The way of rows to other nodes.
    pub levels: Levels,
    /// Whether columns are compressed between nodes.
    pub is_compressed: bool,
    /// The bytes that a rank sends all others in a round.
    pub round_bytes: usize,
}

fn properties(schema: SchemaRef, partitioning: Partitioning) -> Arc<PlanProperties> {
    let equivalences = EquivalenceProperties::new(schema);
    Arc::new(PlanProperties::new(equivalences, partitioning, EmissionType::Incremental, Boundedness::Bounded))
}

/// The rows of all partitions of an input that belong to a lane, with the words for other ranks if there are none.
fn lane_of(
    input: &Arc<dyn ExecutionPlan>,
    lane: usize,
    lanes: usize,
    context: &Arc<TaskContext>,
) -> Result<impl Stream<Item = Result<RecordBatch, String>> + Send + 'static> {
    let partitions = (lane..input.output_partitioning().partition_count()).step_by(lanes);
    let streams = partitions.map(|partition| input.execute(partition, Arc::clone(context)));
    let streams: Vec<_> = streams.collect::<Result<_>>()?;
    let input = Arc::clone(input);
    Ok(select_all(streams).map_err(move |error| cause_in(&error, &input)))
}

fn counted(
    schema: SchemaRef,
    rows: impl Stream<Item = Result<RecordBatch>> + Send + 'static,
    metrics: &ExecutionPlanMetricsSet,
    lane: usize,
) -> SendableRecordBatchStream {
    let baseline = BaselineMetrics::new(metrics, lane);
    let rows: BoxStream<'static, _> = rows
        .inspect_ok(move |batch| {
            baseline.record_output(batch.num_rows());
        })
        .boxed();
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// Adds what all ranks have exchanged to the metrics of a node.
pub fn count_exchanged(metrics: &ExecutionPlanMetricsSet, exchanged: &Exchanged) {
    let count = |name: &'static str, value: u64| {
        let count: Count = MetricBuilder::new(metrics).global_counter(name);
        count.add(usize::try_from(value).unwrap_or(usize::MAX));
    };
    count("messages_across_nodes", exchanged.across.messages);
    count("bytes_across_nodes", exchanged.across.sent_bytes);
    count("plain_bytes_across_nodes", exchanged.across.bytes);
    count("messages_within_nodes", exchanged.within.messages);
    count("bytes_within_nodes", exchanged.within.sent_bytes);
    count("rows_sent", exchanged.sent_rows);
    count("rows_kept", exchanged.kept_rows);
    let wait = |name: &'static str, value| {
        let time: Time = MetricBuilder::new(metrics).subset_time(name, 0);
        time.add_duration(value);
    };
    wait("waited_to_send", exchanged.sending_wait);
    wait("waited_to_receive", exchanged.receiving_wait);
}
