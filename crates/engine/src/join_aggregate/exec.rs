//! The plan node.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};
use overspill_gpu_join::MOST_AGGREGATES;
use overspill_join::selection::Aggregate;
use overspill_join::spec::ColumnSource;

use super::stream::JoinAggregateStream;
use crate::config::OverspillConfig;
use crate::fused_aggregate::{PlannedAggregate, displayed};
use crate::hybrid_join::HybridJoinExec;
use crate::runtime::OverspillRuntime;

/// An aggregate without groups over a join. A GPU may aggregate the pairs of the join.
///
/// The node keeps the planned aggregate for its statistics and distribution, and to aggregate pairs that the CPU finds. It
/// returns the same output as that aggregate: the states of partial aggregates, or their results.
#[derive(Debug)]
pub struct JoinAggregateExec {
    planned: PlannedAggregate,
    join: Arc<dyn ExecutionPlan>,
    /// For each column of the aggregate's input, its position in the join's output.
    columns: Vec<usize>,
    /// Aggregates over columns of the join's output.
    aggregates: Vec<Aggregate>,
    metrics: ExecutionPlanMetricsSet,
}

impl JoinAggregateExec {
    /// Replaces a planned aggregate over a join. Returns `None` if kernels cannot compute the aggregate; it is then left as
    /// it is.
    ///
    /// The aggregate has no groups and is the first of its kind (partial or single). Aggregates are `count`, `sum`, `min` and
    /// `max` of integers, dates, times, timestamps and durations, at most four different ones besides counts. The join is an
    /// inner join whose only condition is equality of keys of up to 64 bits. If columns of a side are aggregated, the join
    /// outputs at most 8 bytes per row of that side.
    pub fn try_new(aggregate: &AggregateExec) -> Option<Self> {
        let (planned, below) = PlannedAggregate::new(aggregate)?;
        let join = below.downcast_ref::<HybridJoinExec>().filter(|join| join.may_aggregate_pairs())?;
        let columns = planned.columns(below.schema().fields().len())?;
        let aggregates = planned.aggregates(|column| columns.get(column).copied())?;
        if !kernels_take(&aggregates, join) {
            return None;
        }
        Some(Self { planned, join: Arc::clone(&below), columns, aggregates, metrics: ExecutionPlanMetricsSet::new() })
    }

    /// Whether a GPU may run the join, by the settings and the estimated sizes of the plan.
    pub(crate) fn may_use_gpu(&self, config: &OverspillConfig, runtime: &OverspillRuntime) -> bool {
        self.join
            .downcast_ref::<HybridJoinExec>()
            .is_some_and(|join| join.gpu_advisor(config, runtime, false).is_some())
    }

    /// The join.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.join
    }
}

/// Whether kernels can compute these aggregates of a join's output. There must be few enough, and their columns must be
/// packed: all output columns of their side must fit into 8 bytes.
fn kernels_take(aggregates: &[Aggregate], join: &HybridJoinExec) -> bool {
    let mut distinct: Vec<Aggregate> = Vec::new();
    for aggregate in aggregates {
        match aggregate {
            Aggregate::SumOfProducts(..) => return false,
            // The join counts its pairs anyway.
            Aggregate::CountRows | Aggregate::Count(_) => {}
            other if distinct.contains(other) => {}
            other => distinct.push(*other),
        }
    }
    let (sources, schema) = (join.output_columns(), join.schema());
    let is_build = |column: usize| matches!(sources[column], ColumnSource::Build(_));
    let is_packed = |side: bool| {
        let columns = (0..sources.len()).filter(|column| is_build(*column) == side);
        let widths: Option<Vec<usize>> =
            columns.map(|column| schema.field(column).data_type().primitive_width()).collect();
        widths.is_some_and(|widths| widths.iter().sum::<usize>() <= size_of::<u64>())
    };
    let mut read = aggregates.iter().flat_map(|aggregate| aggregate.columns());
    distinct.len() <= MOST_AGGREGATES && read.all(|column| is_packed(is_build(column)))
}

impl DisplayAs for JoinAggregateExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let planned = displayed(self.planned.node().as_ref(), format);
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "JoinAggregateExec: {}", planned.strip_prefix("AggregateExec: ").unwrap_or(&planned))
            }
            DisplayFormatType::TreeRender => write!(f, "{planned}"),
        }
    }
}

impl ExecutionPlan for JoinAggregateExec {
    fn name(&self) -> &str {
        "JoinAggregateExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.planned.node().properties()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.planned.node().input_distribution_requirements()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.join]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.planned.apply_expressions(f)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let [join] = &children[..] else { return internal_err!("JoinAggregateExec over {} nodes", children.len()) };
        let aggregate = self.planned.over(Arc::clone(join))?;
        // Over any other node than a join it becomes a plain aggregate again.
        let fused = aggregate.downcast_ref::<AggregateExec>().and_then(Self::try_new);
        Ok(fused.map_or(aggregate, |fused| Arc::new(fused) as _))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let join = self.join.downcast_ref::<HybridJoinExec>();
        let join = join.ok_or_else(|| internal_datafusion_err!("JoinAggregateExec without a join"))?;
        let (pairs, aggregation) = join.execute_aggregating(partition, context, &self.aggregates)?;
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let stream = JoinAggregateStream::new(self.planned.node(), &self.columns, pairs, aggregation, baseline)?;
        Ok(stream.into_stream())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.planned.statistics(Arc::clone(&inputs[0]), args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}
