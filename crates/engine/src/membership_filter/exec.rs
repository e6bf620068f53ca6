//! The plan node.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use super::slot::MembershipSlot;
use super::stream::{MembershipStream, Metrics, Test};

/// Drops rows whose keys are not on the build sides of joins above.
///
/// It may let any row pass, and does so while most rows do: the joins decide. It keeps the order and the partitions of its
/// input.
#[derive(Debug)]
pub struct MembershipExec {
    input: Arc<dyn ExecutionPlan>,
    filters: Vec<KeyFilter>,
    metrics: ExecutionPlanMetricsSet,
}

/// The keys of one join.
#[derive(Debug, Clone)]
pub(crate) struct KeyFilter {
    /// The columns of the key, in the order of the join's condition.
    pub columns: Vec<usize>,
    /// The condition of the join, for EXPLAIN.
    pub join: Arc<str>,
    pub slot: Arc<MembershipSlot>,
}

impl MembershipExec {
    /// Drops rows by a further join. A node below that drops rows is one with it.
    pub(crate) fn over(input: &Arc<dyn ExecutionPlan>, filter: KeyFilter) -> Self {
        let (input, mut filters) = match input.downcast_ref::<Self>() {
            Some(below) => (&below.input, below.filters.clone()),
            None => (input, vec![]),
        };
        filters.push(filter);
        Self { input: Arc::clone(input), filters, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl DisplayAs for MembershipExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        let schema = self.input.schema();
        let column = |column: &usize| format!("{}@{column}", schema.field(*column).name());
        let shown = self.filters.iter().map(|filter| {
            let columns = filter.columns.iter().map(column).collect::<Vec<_>>().join(", ");
            format!("[{columns}] of [{}]", filter.join)
        });
        let shown = shown.collect::<Vec<_>>();
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "MembershipExec: keys={}", shown.join(", "))
            }
            DisplayFormatType::TreeRender => write!(f, "{}", shown.join("\n")),
        }
    }
}

impl ExecutionPlan for MembershipExec {
    fn name(&self) -> &str {
        "MembershipExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([input]) = <[_; 1]>::try_from(children) else { return internal_err!("MembershipExec has one input") };
        Ok(Arc::new(Self { input, filters: self.filters.clone(), metrics: ExecutionPlanMetricsSet::new() }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        // The joins execute this node, which is on their probe sides, after they have begun.
        let tests =
            self.filters.iter().filter_map(|filter| Some(Test::new(&filter.slot.keys()?, filter.columns.clone())));
        let tests: Vec<_> = tests.collect();
        let input = self.input.execute(partition, Arc::clone(&context))?;
        if tests.is_empty() {
            return Ok(input);
        }
        let metrics = Metrics::new(&self.metrics, partition);
        Ok(MembershipStream::new(input, tests, context.session_config().batch_size(), metrics).into_stream())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let [input] = inputs else { return internal_err!("MembershipExec has one input") };
        Ok(Arc::new(Statistics::clone(input).to_inexact()))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}
