//! The plan node.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, InputDistributionRequirements, PlanProperties,
};
use overspill_join::selection::Aggregate;

use super::stream::JoinAggregateStream;
use crate::config::OverspillConfig;
use crate::filter_aggregate::{aggregate as pair_aggregate, is_first_without_groups};
use crate::hybrid_join::HybridJoinExec;

/// An aggregate without groups over a join whose pairs a GPU may aggregate.
///
/// It keeps the aggregate that it was planned as, to ask it about statistics and distribution, and for pairs that the CPU finds. Its
/// output is that aggregate's: the states of partial aggregates, or their results.
#[derive(Debug)]
pub struct JoinAggregateExec {
    /// Above the join, or above the projection.
    aggregate: Arc<AggregateExec>,
    /// Of columns alone, above the join.
    projection: Option<Arc<dyn ExecutionPlan>>,
    join: Arc<dyn ExecutionPlan>,
    /// For each column of the aggregate's input, which of the join's output it is.
    columns: Vec<usize>,
    /// Of columns of the join's output.
    aggregates: Vec<Aggregate>,
    metrics: ExecutionPlanMetricsSet,
}

impl JoinAggregateExec {
    /// Takes a planned aggregate over a join over; `None` if kernels surely cannot compute it, which then stays as it is.
    ///
    /// The aggregate has no groups and is the first of its kind (partial or single). Aggregates are `count`, `sum`, `min` and `max` of
    /// columns of up to 8 bytes: integers, dates, times, timestamps and durations. The join is one that
    /// [`HybridJoinExec::may_aggregate_pairs`].
    pub fn try_new(aggregate: &AggregateExec) -> Option<Self> {
        let above = aggregate.input();
        let (projection, join) = match above.downcast_ref::<ProjectionExec>() {
            Some(projection) => (Some(Arc::clone(above)), projection.input()),
            None => (None, above),
        };
        let may_aggregate = join.downcast_ref::<HybridJoinExec>()?.may_aggregate_pairs();
        if !is_first_without_groups(aggregate) || !may_aggregate {
            return None;
        }
        let columns: Vec<usize> = match &projection {
            Some(projection) => {
                let columns = projection.downcast_ref::<ProjectionExec>()?.expr().iter();
                columns.map(|column| Some(column.expr.downcast_ref::<Column>()?.index())).collect::<Option<_>>()?
            }
            None => (0..join.schema().fields().len()).collect(),
        };
        let (schema, joined) = (above.schema(), join.schema());
        // Kernels have values of 64 bits.
        let place = |column: usize| {
            let column = *columns.get(column)?;
            let bytes = joined.field(column).data_type().primitive_width()?;
            (bytes <= size_of::<u64>()).then_some(column)
        };
        let aggregates = aggregate.aggr_expr().iter().map(|planned| {
            Some(match pair_aggregate(planned, &schema)? {
                Aggregate::CountRows => Aggregate::CountRows,
                Aggregate::Count(column) => Aggregate::Count(place(column)?),
                Aggregate::Sum(column) => Aggregate::Sum(place(column)?),
                Aggregate::Min(column) => Aggregate::Min(place(column)?),
                Aggregate::Max(column) => Aggregate::Max(place(column)?),
                Aggregate::SumOfProducts(..) => return None,
            })
        });
        Some(Self {
            aggregates: aggregates.collect::<Option<_>>()?,
            columns,
            aggregate: Arc::new(aggregate.clone()),
            join: Arc::clone(join),
            projection,
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// Whether a GPU may join, by the settings and the sizes that the plan estimates.
    pub(crate) fn may_use_gpu(&self, config: &OverspillConfig) -> bool {
        self.join.downcast_ref::<HybridJoinExec>().is_some_and(|join| join.gpu_advisor(config).is_some())
    }

    /// The join.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.join
    }
}

impl DisplayAs for JoinAggregateExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        struct Planned<'a>(&'a AggregateExec, DisplayFormatType);
        impl fmt::Display for Planned<'_> {
            fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
                self.0.fmt_as(self.1, f)
            }
        }
        let planned = Planned(&self.aggregate, format).to_string();
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
        self.aggregate.properties()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input_distribution_requirements().into_per_child()
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        self.aggregate.input_distribution_requirements()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.join]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        // With a projection the aggregate's are over what that puts out, and not over the output of the join.
        match &self.projection {
            Some(projection) => projection.apply_expressions(f),
            None => self.aggregate.apply_expressions(f),
        }
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let anew = || ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        let mut children = children;
        if let Some(projection) = &self.projection {
            children = vec![Arc::clone(projection).replace_children(children, anew())?];
        }
        let aggregate: Arc<dyn ExecutionPlan> = Arc::clone(&self.aggregate) as _;
        let aggregate = aggregate.replace_children(children, anew())?;
        // Over anything but a join it is an aggregate again.
        let fused = aggregate.downcast_ref::<AggregateExec>().and_then(Self::try_new);
        Ok(fused.map_or(aggregate, |fused| Arc::new(fused) as _))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let join = self.join.downcast_ref::<HybridJoinExec>();
        let join = join.ok_or_else(|| internal_datafusion_err!("JoinAggregateExec without a join"))?;
        let (pairs, aggregation) = join.execute_aggregating(partition, context, &self.aggregates)?;
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let stream = JoinAggregateStream::new(&self.aggregate, &self.columns, pairs, aggregation, baseline)?;
        Ok(stream.into_stream())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match &self.projection {
            Some(projection) => {
                let projected = projection.statistics_from_inputs(inputs, args)?;
                self.aggregate.statistics_from_inputs(&[projected], args)
            }
            None => self.aggregate.statistics_from_inputs(inputs, args),
        }
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}
