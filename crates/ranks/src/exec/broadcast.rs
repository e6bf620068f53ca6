//! The plan node that brings the rows of all ranks to each of them.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use overspill_exchange::RowsSpec;

use super::{Way, counted, lane_of, properties};
use crate::job::{Exchanging, RankJob};

/// Sends the rows of each rank to all ranks. It has one partition.
#[derive(Debug)]
pub struct RankBroadcastExec {
    input: Arc<dyn ExecutionPlan>,
    way: Way,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RankBroadcastExec {
    /// Broadcasts the rows of an input.
    pub fn new(input: Arc<dyn ExecutionPlan>, way: Way) -> Self {
        let properties = properties(input.schema(), Partitioning::UnknownPartitioning(1));
        Self { input, way, properties, metrics: ExecutionPlanMetricsSet::new() }
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

impl DisplayAs for RankBroadcastExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "RankBroadcastExec: compressed={}", self.way.is_compressed),
        }
    }
}

impl ExecutionPlan for RankBroadcastExec {
    fn name(&self) -> &str {
        "RankBroadcastExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
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
            Ok([input]) => Ok(Arc::new(Self::new(input, self.way))),
            Err(children) => internal_err!("RankBroadcastExec over {} inputs", children.len()),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let job = RankJob::of(&context)?;
        let rows = lane_of(&self.input, partition, 1, &context)?;
        let spec = RowsSpec {
            number: job.open(self.way.number, partition),
            schema: self.input.schema(),
            is_compressed: self.way.is_compressed,
            round_bytes: self.way.round_bytes / job.job().endpoint().topology().ranks(),
        };
        let broadcast = spec.broadcast(job.job(), rows);
        job.count(self.way.number, broadcast.metrics);
        let rows = Exchanging::new(job, broadcast.driver, broadcast.output);
        Ok(counted(self.input.schema(), rows, &self.metrics, partition))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
