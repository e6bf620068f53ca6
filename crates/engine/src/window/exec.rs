//! The plan node.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::sort_expr::OrderingRequirements;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};

use super::bounded::bounded;
use super::whole::whole_partitions;

/// A window of DataFusion's, with its memory counted.
///
/// It replaces a [`WindowAggExec`] or a [`BoundedWindowAggExec`]. It keeps the replaced node and takes all plan properties
/// from it; a `BoundedWindowAggExec` also runs below it.
#[derive(Debug)]
pub struct CountedWindowExec {
    planned: Arc<dyn ExecutionPlan>,
    metrics: ExecutionPlanMetricsSet,
}

impl CountedWindowExec {
    /// Replaces a window; `None` if the node is not a window.
    pub fn try_new(planned: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let is_window = planned.is::<WindowAggExec>() || planned.is::<BoundedWindowAggExec>();
        is_window.then(|| Self { planned: Arc::clone(planned), metrics: ExecutionPlanMetricsSet::new() })
    }
}

impl DisplayAs for CountedWindowExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        if !matches!(format, DisplayFormatType::TreeRender) {
            write!(f, "CountedWindowExec: ")?;
        }
        self.planned.fmt_as(format, f)
    }
}

impl ExecutionPlan for CountedWindowExec {
    fn name(&self) -> &str {
        "CountedWindowExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.planned.properties()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.planned.input_distribution_requirements()
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        self.planned.required_input_ordering()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.planned.maintains_input_order()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.planned.children()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.planned.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let planned = Arc::clone(&self.planned).replace_children(children, options)?;
        Ok(Self::try_new(&planned).map_or(planned, |window| Arc::new(window) as _))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        if let Some(window) = self.planned.downcast_ref::<WindowAggExec>() {
            return whole_partitions(window, partition, context, metrics);
        }
        match self.planned.downcast_ref::<BoundedWindowAggExec>() {
            Some(window) => bounded(window, partition, context, metrics),
            None => internal_err!("CountedWindowExec without a window"),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.planned.child_stats_requests(partition)
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.planned.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.planned.cardinality_effect()
    }
}
