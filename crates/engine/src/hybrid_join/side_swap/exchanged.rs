//! The join with exchanged sides.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, HashJoinExecBuilder, PartitionMode};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{StreamExt, stream};
use overspill_join::spec::ColumnSource;
use overspill_join::spill::SpillTuning;

use super::hand_over::HandOverExec;
use super::pulled::pulled;
use crate::hybrid_join::HybridJoinExec;
use crate::hybrid_join::schema::output_columns;
use crate::join_execution::memory::JoinMemory;
use crate::join_execution::read_ahead::Kept;

/// How many times the least memory of the join is enough for it.
const ROOMY: usize = 4;

/// The bytes that the join may hold, if there is a limit.
#[derive(Debug, Clone, Copy)]
pub(in crate::hybrid_join) struct Room(pub Option<usize>);

/// Makes the join that a planned one becomes if its sides are exchanged.
pub(in crate::hybrid_join) struct Exchanged {
    planned: HashJoinExec,
    /// The number of streams that return rows.
    streams: usize,
    /// The number of build sides of the planned join.
    parts: usize,
    /// Those of the planned join.
    metrics: ExecutionPlanMetricsSet,
}

impl Exchanged {
    /// Of a planned join with `parts` build sides, each with `streams` output streams. `metrics` are those of the join.
    ///
    /// # Errors
    /// If the plan is inconsistent.
    pub fn new(
        planned: &HashJoinExec,
        streams: usize,
        parts: usize,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Self> {
        Ok(Self { planned: planned.builder().build()?, streams, parts, metrics: metrics.clone() })
    }

    /// The room that the join would have beside what the planned one, with this memory, holds; `None` if that is too little.
    pub fn room(&self, memory: &JoinMemory) -> Option<Room> {
        let fields = |side: &Arc<dyn ExecutionPlan>| side.schema().fields().len();
        let columns = fields(self.planned.left()).max(fields(self.planned.right()));
        let floors = (self.streams + 1) * SpillTuning::floor(columns);
        let room = Room(memory.room(self.parts));
        if room.0.is_some_and(|bytes| bytes < ROOMY * floors) {
            return None;
        }
        if self.parts == 1 {
            memory.forget_floors();
        }
        Some(room)
    }

    /// The join over rows that were read: all rows of the `probe` side, and of the build side those that were kept, and the rest if it has not ended. Its
    /// columns are those of the planned join.
    ///
    /// # Errors
    /// If the plan is inconsistent.
    pub fn join(
        &self,
        probe: Vec<Kept>,
        build: Kept,
        rest: Option<SendableRecordBatchStream>,
        room: Room,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (left, right) = (self.planned.left().schema(), self.planned.right().schema());
        let of_probe = stream::iter(probe).flat_map(|kept| kept.into_stream().boxed());
        let of_build = adapted(&left, build.into_stream().chain(stream::iter(rest).flatten()));
        let build_side = HandOverExec::new(Arc::clone(&right), vec![adapted(&right, of_probe)]);
        let probe_side = HandOverExec::new(left, pulled(of_build, self.streams));
        let join = HybridJoinExec::try_new(&self.exchanged(Arc::new(build_side), Arc::new(probe_side))?)?;
        Ok(Arc::new(join.in_place_of(self.metrics.clone(), room)))
    }

    /// The planned join over exchanged inputs. It has no dynamic filter: nodes below read that of the planned join.
    fn exchanged(&self, build: Arc<dyn ExecutionPlan>, probe: Arc<dyn ExecutionPlan>) -> Result<HashJoinExec> {
        let planned = &self.planned;
        let on = planned.on().iter().map(|(left, right)| (Arc::clone(right), Arc::clone(left)));
        let join_type = planned.join_type().swap();
        let builder = HashJoinExecBuilder::new(build, probe, on.collect(), join_type)
            .with_filter(planned.filter().map(JoinFilter::swap))
            .with_null_equality(planned.null_equality())
            .with_partition_mode(PartitionMode::CollectLeft);
        let all = builder.build()?;
        let columns = output_columns(&all);
        let position = |source: ColumnSource| {
            let wanted = match source {
                ColumnSource::Build(column) => ColumnSource::Probe(column),
                ColumnSource::Probe(column) => ColumnSource::Build(column),
                ColumnSource::Mark => ColumnSource::Mark,
            };
            columns.iter().position(|column| *column == wanted).expect("the exchanged join has the same columns")
        };
        let wanted: Vec<usize> = output_columns(planned).into_iter().map(position).collect();
        all.builder().with_projection(Some(wanted)).recompute_properties().build()
    }
}

fn adapted(
    schema: &SchemaRef,
    batches: impl stream::Stream<Item = Result<RecordBatch>> + Send + 'static,
) -> SendableRecordBatchStream {
    Box::pin(RecordBatchStreamAdapter::new(Arc::clone(schema), batches))
}
