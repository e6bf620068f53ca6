//! The plan node.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use super::conjuncts::Conjuncts;
use super::stream::{AdaptiveFilterStream, Metrics};

/// A filter whose streams evaluate its conjuncts in the order of their measured costs and pass rates.
///
/// It keeps the planned filter, which is never executed, for its properties and statistics.
#[derive(Debug)]
pub struct AdaptiveFilterExec {
    planned: Arc<FilterExec>,
    conjuncts: Arc<Conjuncts>,
    metrics: ExecutionPlanMetricsSet,
}

impl AdaptiveFilterExec {
    /// Replaces a planned filter. Returns `None` if no two of its conjuncts may change places.
    ///
    /// # Errors
    /// Fails if a conjunct cannot be rewritten for a batch of its own columns, which is a bug.
    pub fn try_new(planned: &FilterExec) -> Result<Option<Self>> {
        let conjuncts = Conjuncts::of(planned.predicate(), &planned.input().schema())?;
        let new = |conjuncts| Self {
            planned: Arc::new(planned.clone()),
            conjuncts: Arc::new(conjuncts),
            metrics: ExecutionPlanMetricsSet::new(),
        };
        Ok(conjuncts.map(new))
    }

    /// This node for a planned filter with the same predicate over the same columns.
    fn of(&self, planned: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        match planned.downcast_ref::<FilterExec>() {
            Some(filter) => Arc::new(Self {
                planned: Arc::new(filter.clone()),
                conjuncts: Arc::clone(&self.conjuncts),
                metrics: ExecutionPlanMetricsSet::new(),
            }),
            None => planned,
        }
    }
}

impl DisplayAs for AdaptiveFilterExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        match format {
            // It begins with the name of the planned node.
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "Adaptive")?;
                self.planned.fmt_as(format, f)
            }
            DisplayFormatType::TreeRender => self.planned.fmt_as(format, f),
        }
    }
}

impl ExecutionPlan for AdaptiveFilterExec {
    fn name(&self) -> &str {
        "AdaptiveFilterExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.planned.properties()
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
        Ok(self.of(planned))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.planned.input().execute(partition, context)?;
        let metrics = Metrics::new(&self.metrics, partition, self.conjuncts.all.len());
        Ok(AdaptiveFilterStream::new(&self.planned, &self.conjuncts, input, metrics).into_stream())
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

    fn fetch(&self) -> Option<usize> {
        self.planned.fetch()
    }

    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        self.planned.with_fetch(fetch).map(|planned| self.of(planned))
    }
}
