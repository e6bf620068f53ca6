//! The plan node.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::common::spawn_buffered;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, ExecutionPlanProperties, InputDistributionRequirements,
    Partitioning, PlanProperties,
};
use futures::stream::select_all;
use overspill_gpu_join::MOST_AGGREGATES;
use overspill_join::hybrid::PairAggregation;
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
/// returns the same output as that aggregate: the states of partial aggregates, or their results. Its one output partition has
/// the rows of all partitions of the aggregate: executed together, the streams of the join may leave rows to one another.
#[derive(Debug)]
pub struct JoinAggregateExec {
    planned: PlannedAggregate,
    join: Arc<dyn ExecutionPlan>,
    /// For each column of the aggregate's input, its position in the join's output.
    columns: Vec<usize>,
    /// Aggregates over columns of the join's output.
    aggregates: Vec<Aggregate>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl JoinAggregateExec {
    /// Replaces a planned aggregate over a join, and the node that gathers the aggregate's partitions if it has several. Returns
    /// `None` if kernels cannot compute the aggregate; it is then left as it is.
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
        let (join, metrics) = (Arc::clone(&below), ExecutionPlanMetricsSet::new());
        let properties = PlanProperties::clone(planned.node().properties());
        let properties = Arc::new(properties.with_partitioning(Partitioning::UnknownPartitioning(1)));
        Some(Self { planned, join, columns, aggregates, properties, metrics })
    }

    /// Aggregates a stream of the join.
    fn stream(
        &self,
        partition: usize,
        (pairs, aggregation): (SendableRecordBatchStream, Arc<PairAggregation>),
    ) -> Result<SendableRecordBatchStream> {
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let stream = JoinAggregateStream::new(self.planned.node(), &self.columns, pairs, aggregation, baseline)?;
        Ok(stream.into_stream())
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
        &self.properties
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
        if let Some(fused) = aggregate.downcast_ref::<AggregateExec>().and_then(Self::try_new) {
            return Ok(Arc::new(fused));
        }
        let is_gathered = aggregate.output_partitioning().partition_count() == 1;
        Ok(if is_gathered { aggregate } else { Arc::new(CoalescePartitionsExec::new(aggregate)) })
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let join = self.join.downcast_ref::<HybridJoinExec>();
        let join = join.ok_or_else(|| internal_datafusion_err!("JoinAggregateExec without a join"))?;
        if partition > 0 {
            return internal_err!("JoinAggregateExec has one partition, not one of number {partition}");
        }
        let mut streams = join.execute_aggregating(&context, &self.aggregates)?;
        if streams.len() == 1 {
            return self.stream(0, streams.remove(0));
        }
        let streams = streams.into_iter().enumerate();
        let streams = streams.map(|(number, pairs)| Ok(spawn_buffered(self.stream(number, pairs)?, 1)));
        let rows = select_all(streams.collect::<Result<Vec<_>>>()?);
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, _: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        self.planned.statistics(Arc::clone(&inputs[0]), &StatisticsArgs::new())
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}
