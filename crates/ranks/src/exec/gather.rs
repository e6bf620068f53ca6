//! The plan node that brings the rows of all ranks to the first.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use futures::future::ready;
use futures::stream;
use futures::{FutureExt, StreamExt};
use overspill_exchange::{Rank, RowsSpec};

use super::{Way, counted, lane_of, properties};
use crate::job::{Exchanging, RankJob};
use crate::message::FIRST;

/// Brings the rows of each rank to the first, where it has a partition for each rank: rows keep their order in it. On the others it has one
/// partition, without rows. The input has one partition.
#[derive(Debug)]
pub struct RankGatherExec {
    input: Arc<dyn ExecutionPlan>,
    /// This rank.
    here: Rank,
    ranks: usize,
    way: Way,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RankGatherExec {
    /// Gathers the rows of an input on this one of so many ranks.
    pub fn new(input: Arc<dyn ExecutionPlan>, here: Rank, ranks: usize, way: Way) -> Self {
        let partitions = if here == FIRST { ranks } else { 1 };
        // Each partition has the order of the input's one.
        let equivalences = input.properties().equivalence_properties().clone();
        let base = properties(input.schema(), Partitioning::UnknownPartitioning(partitions));
        let properties = Arc::new(PlanProperties::new(
            equivalences,
            base.output_partitioning().clone(),
            base.emission_type,
            base.boundedness,
        ));
        Self { input, here, ranks, way, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// The rank that it is on, and how many there are.
    pub fn place(&self) -> (Rank, usize) {
        (self.here, self.ranks)
    }

    /// How rows travel.
    pub fn way(&self) -> &Way {
        &self.way
    }

    /// What it counts.
    pub fn counters(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }
}

impl DisplayAs for RankGatherExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "RankGatherExec: ranks={}, compressed={}", self.ranks, self.way.is_compressed),
        }
    }
}

impl ExecutionPlan for RankGatherExec {
    fn name(&self) -> &str {
        "RankGatherExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self::new(input, self.here, self.ranks, self.way))),
            Err(children) => internal_err!("RankGatherExec over {} inputs", children.len()),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let job = RankJob::of(&context)?;
        let number = job.open(self.way.number, partition);
        if self.here == FIRST && partition == FIRST {
            return self.input.execute(0, context);
        }
        let spec = RowsSpec {
            // All streams of a gather have one number: their ranks tell them apart.
            number: number - partition as u64,
            schema: self.input.schema(),
            is_compressed: self.way.is_compressed,
            round_bytes: self.way.round_bytes / self.ranks,
        };
        let rows = if self.here == FIRST {
            let (rows, metrics) = spec.receive(job.job(), partition);
            job.count(self.way.number, [metrics]);
            Exchanging::new(job, ready(Ok(())).boxed(), rows)
        } else {
            let rows = lane_of(&self.input, partition, 1, &context)?;
            let (sending, metrics) = spec.send(job.job(), FIRST, rows);
            job.count(self.way.number, [metrics]);
            Exchanging::new(job, sending, stream::empty().boxed())
        };
        Ok(counted(self.input.schema(), rows, &self.metrics, partition))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
