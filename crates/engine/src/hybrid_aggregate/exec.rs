//! The plan node.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, InputOrderMode, Partitioning, PlanProperties,
};
use parking_lot::Mutex;

use super::functions::Functions;
use super::metrics::Metrics;
use super::run::Run;
use crate::fused_aggregate::displayed;

/// An aggregate with groups whose keys have fixed width.
///
/// It keeps the planned nodes for their statistics and properties, and returns the rows of the final one in its partitions.
pub struct HybridAggregateExec {
    /// The final aggregate, over a repartition, over the partial aggregate.
    planned: Arc<dyn ExecutionPlan>,
    input: Arc<dyn ExecutionPlan>,
    functions: Arc<Functions>,
    metrics: ExecutionPlanMetricsSet,
    /// An execution, until all of its outputs have begun. An output that begins a second time starts another execution.
    running: Mutex<Option<Run>>,
}

impl fmt::Debug for HybridAggregateExec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("HybridAggregateExec").field("planned", &self.planned).finish_non_exhaustive()
    }
}

impl HybridAggregateExec {
    /// Replaces a final aggregate, the repartition below it, and the partial aggregate below that. `None` for all others: those with grouping
    /// sets, limits, ordered input, keys or states of variable width, floats as keys, or functions that need an order.
    ///
    /// # Errors
    /// If an expression has no type in the schema of its input.
    pub fn try_new(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Self>> {
        let Some(partial) = partial_below(node) else { return Ok(None) };
        let Some(functions) = Functions::of(partial)? else { return Ok(None) };
        Ok(Some(Self {
            planned: Arc::clone(node),
            input: Arc::clone(partial.input()),
            functions: Arc::new(functions),
            metrics: ExecutionPlanMetricsSet::new(),
            running: Mutex::default(),
        }))
    }

    fn partial(&self) -> Result<&AggregateExec> {
        partial_below(&self.planned)
            .ok_or_else(|| internal_datafusion_err!("HybridAggregateExec lost its partial aggregate"))
    }
}

/// The partial aggregate below a final one, if the two do no more than to group by hash.
fn partial_below(node: &Arc<dyn ExecutionPlan>) -> Option<&AggregateExec> {
    let last = node.downcast_ref::<AggregateExec>().filter(|last| *last.mode() == AggregateMode::FinalPartitioned)?;
    let repartition = last.input().downcast_ref::<RepartitionExec>()?;
    let partial = repartition.input().downcast_ref::<AggregateExec>();
    let partial = partial.filter(|partial| *partial.mode() == AggregateMode::Partial)?;
    let is_plain = |aggregate: &AggregateExec| {
        aggregate.group_expr().is_single()
            && aggregate.limit_options().is_none()
            && *aggregate.input_order_mode() == InputOrderMode::Linear
            && aggregate.dynamic_expressions_produced().is_empty()
    };
    // Partitions are those of DataFusion: nodes above rely on them.
    let Partitioning::Hash(keys, _) = repartition.partitioning() else { return None };
    let is_key = |(number, key): (usize, &Arc<dyn PhysicalExpr>)| {
        key.downcast_ref::<Column>().is_some_and(|column| column.index() == number)
    };
    let are_keys = keys.len() == partial.group_expr().expr().len() && keys.iter().enumerate().all(is_key);
    (are_keys && !repartition.preserve_order() && is_plain(last) && is_plain(partial)).then_some(partial)
}

impl DisplayAs for HybridAggregateExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(partial) = partial_below(&self.planned) else { return Err(fmt::Error) };
        let planned = displayed(partial, format);
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                let words = planned.strip_prefix("AggregateExec: mode=Partial, ").unwrap_or(&planned);
                write!(f, "HybridAggregateExec: {words}")
            }
            DisplayFormatType::TreeRender => write!(f, "{planned}"),
        }
    }
}

impl ExecutionPlan for HybridAggregateExec {
    fn name(&self) -> &str {
        "HybridAggregateExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.planned.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.partial()?.apply_expressions(f)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([input]) = <[_; 1]>::try_from(children) else {
            return internal_err!("HybridAggregateExec has one input");
        };
        let over = |node: &Arc<dyn ExecutionPlan>, input| {
            let anew = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Arc::clone(node).replace_children(vec![input], anew)
        };
        let repartition = self.planned.children()[0];
        let partial = repartition.children()[0];
        let planned = over(&self.planned, over(repartition, over(partial, input)?)?)?;
        Ok(match Self::try_new(&planned)? {
            Some(aggregate) => Arc::new(aggregate),
            None => planned,
        })
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let outputs = self.planned.output_partitioning().partition_count();
        if partition >= outputs {
            return internal_err!("HybridAggregateExec has {outputs} partitions, not one of number {partition}");
        }
        let mut running = self.running.lock();
        let run = match running.take().filter(|run| !run.has_begun(partition)) {
            Some(run) => run,
            None => {
                let output = (self.schema(), outputs);
                Run::new(&self.functions, &self.input, output, Metrics::new(&self.metrics), context)?
            }
        };
        let run = running.insert(run);
        let stream = run.begin(partition);
        if run.have_all_begun() {
            *running = None;
        }
        stream
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, _: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        let of_all = StatisticsArgs::new();
        let states = self.partial()?.statistics_from_inputs(inputs, &of_all)?;
        self.planned.statistics_from_inputs(&[states], &of_all)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}
