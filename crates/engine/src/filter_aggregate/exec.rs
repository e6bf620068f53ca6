//! The plan node.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};
use overspill_join::selection::Selection;

use super::planned::Planned;
use super::stream::FilterAggregateStream;
use crate::config::OverspillConfig;
use crate::fused_aggregate::displayed;

/// A filter and an aggregate without groups above it, in one pass over the columns.
///
/// It keeps the planned nodes for their statistics and distribution, and to process batches that only they support; the plan
/// nodes are never executed. It returns the same output as they do: the states of partial aggregates, or their results.
#[derive(Debug)]
pub struct FilterAggregateExec {
    planned: Planned,
    selection: Arc<Selection>,
    metrics: ExecutionPlanMetricsSet,
}

impl FilterAggregateExec {
    /// Replaces a planned aggregate over a filter. Returns `None` if the nodes are not a selection; they are then left as
    /// they are.
    ///
    /// The aggregate has no groups and is the first of its kind (partial or single). The filter is a conjunction of
    /// comparisons of columns with constants by `<`, `<=`, `>`, `>=`, `=` and `BETWEEN`. Columns are integers, dates, times,
    /// timestamps, durations or decimals of up to 38 digits. Aggregates are `count`, `sum` of a column or of the product of
    /// two, `min` and `max`. DataFusion still runs a `min` or `max` that narrows the scan below it at run time.
    pub fn try_new(aggregate: &AggregateExec) -> Option<Self> {
        let planned = Planned::new(aggregate).filter(|planned| planned.filter.fetch().is_none())?;
        let selection = Arc::new(planned.selection()?);
        Some(Self { planned, selection, metrics: ExecutionPlanMetricsSet::new() })
    }

    /// The input of the filter.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        self.planned.input()
    }
}

impl DisplayAs for FilterAggregateExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let aggregate = displayed(self.planned.aggregate.node().as_ref(), format);
        let filter = displayed(self.planned.filter.as_ref(), format);
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                let aggregate = aggregate.strip_prefix("AggregateExec: ").unwrap_or(&aggregate);
                let filter = filter.strip_prefix("FilterExec: ").unwrap_or(&filter);
                write!(f, "FilterAggregateExec: {aggregate}, predicate={filter}")
            }
            DisplayFormatType::TreeRender => {
                writeln!(f, "{}", aggregate.trim_end())?;
                writeln!(f, "{filter}")
            }
        }
    }
}

impl ExecutionPlan for FilterAggregateExec {
    fn name(&self) -> &str {
        "FilterAggregateExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.planned.aggregate.node().properties()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.planned.aggregate.node().input_distribution_requirements()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![self.input()]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        // Only the filter's expressions: the aggregates' expressions are over the filter's output, not over the input of this
        // node.
        self.planned.filter.apply_expressions(f)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let filter = Arc::clone(&self.planned.filter).replace_children(children, options)?;
        let aggregate = self.planned.aggregate.over(filter)?;
        let fused = aggregate.downcast_ref::<AggregateExec>().and_then(Self::try_new);
        Ok(fused.map_or(aggregate, |fused| Arc::new(fused) as _))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let config =
            context.session_config().options().extensions.get::<OverspillConfig>().cloned().unwrap_or_default();
        let input = self.input().execute(partition, Arc::clone(&context))?;
        let stream = FilterAggregateStream::new(
            &self.planned,
            &self.selection,
            input,
            &config,
            &context,
            &self.metrics,
            partition,
        )?;
        Ok(stream.into_stream())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.planned.aggregate.statistics(self.planned.filter.statistics_from_inputs(inputs, args)?, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}
