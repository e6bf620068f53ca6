//! The plan node.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, InputOrderMode, Partitioning, PlanProperties,
};
use parking_lot::Mutex;

use super::functions::Functions;
use super::metrics::Metrics;
use super::narrow::is_arithmetic;
use super::run::{Run, Streams};
use crate::fused_aggregate::displayed;

/// An aggregate with groups.
///
/// It keeps the planned nodes for their statistics and properties, and returns the rows of the last one in its partitions.
pub struct HybridAggregateExec {
    /// A final aggregate, over a repartition or a node that unites streams, over a partial aggregate; or an aggregate whose streams have no group in common.
    planned: Arc<dyn ExecutionPlan>,
    input: Arc<dyn ExecutionPlan>,
    functions: Arc<Functions>,
    metrics: ExecutionPlanMetricsSet,
    /// An execution of all streams, until all of its outputs have begun. An output that begins a second time starts another execution.
    running: Mutex<Option<Run>>,
}

impl fmt::Debug for HybridAggregateExec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("HybridAggregateExec").field("planned", &self.planned).finish_non_exhaustive()
    }
}

impl HybridAggregateExec {
    /// Replaces a final aggregate, the repartition or the union of streams below it, and the partial aggregate below that; or an aggregate that does all in one
    /// phase. `None` for all others: those with a grouping set twice or very many sets, limits, ordered input, floats or nested values as keys or states, or
    /// functions that need an order. Takes in a projection below that computes nothing but sums, differences and products.
    ///
    /// # Errors
    /// If an expression has no type in the schema of its input.
    pub fn try_new(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Self>> {
        let Some(first) = first_of(node) else { return Ok(None) };
        let projection = arithmetic_below(first);
        let Some(functions) = Functions::of(first, projection)? else { return Ok(None) };
        Ok(Some(Self {
            planned: Arc::clone(node),
            input: Arc::clone(projection.map_or_else(|| first.input(), |projection| projection.input())),
            functions: Arc::new(functions),
            metrics: ExecutionPlanMetricsSet::new(),
            running: Mutex::default(),
        }))
    }

    fn first(&self) -> Result<&AggregateExec> {
        first_of(&self.planned).ok_or_else(|| internal_datafusion_err!("HybridAggregateExec lost its aggregate"))
    }

    /// Whether rows of a group may be in several streams of the input.
    fn is_repartitioned(&self) -> bool {
        is_final(&self.planned)
    }

    fn run(&self, streams: Streams, context: Arc<TaskContext>) -> Result<Run> {
        Run::new((&self.functions, &self.schema()), &self.input, streams, Metrics::new(&self.metrics), context)
    }
}

/// The projection below an aggregate, if it computes nothing but sums, differences and products. The functions of the groups compute them in its place.
fn arithmetic_below(first: &AggregateExec) -> Option<&ProjectionExec> {
    let projection = first.input().downcast_ref::<ProjectionExec>()?;
    let computed = || projection.expr().iter().filter(|of| !of.expr.is::<Column>());
    (computed().next().is_some() && computed().all(|of| is_arithmetic(&of.expr))).then_some(projection)
}

fn is_final(node: &Arc<dyn ExecutionPlan>) -> bool {
    let is_last = |mode| matches!(mode, AggregateMode::Final | AggregateMode::FinalPartitioned);
    node.downcast_ref::<AggregateExec>().is_some_and(|last| is_last(*last.mode()))
}

/// The aggregate that sees the rows: `node`, or the partial one below it. `None` if more than to group by hash is asked for.
fn first_of(node: &Arc<dyn ExecutionPlan>) -> Option<&AggregateExec> {
    let last = node.downcast_ref::<AggregateExec>().filter(|last| is_plain(last) && last.group_expr().is_single())?;
    match last.mode() {
        AggregateMode::Single | AggregateMode::SinglePartitioned => Some(last),
        AggregateMode::Final | AggregateMode::FinalPartitioned => partial_below(last),
        AggregateMode::Partial | AggregateMode::PartialReduce => None,
    }
}

fn is_plain(aggregate: &AggregateExec) -> bool {
    aggregate.limit_options().is_none()
        && *aggregate.input_order_mode() == InputOrderMode::Linear
        && aggregate.dynamic_expressions_produced().is_empty()
}

/// The partial aggregate below a final one, and below the node between them that brings the states of a group into one stream, if there are several.
fn partial_below(last: &AggregateExec) -> Option<&AggregateExec> {
    if let Some(partial) = last.input().downcast_ref::<AggregateExec>() {
        let is_one = last.input().output_partitioning().partition_count() == 1;
        return Some(partial)
            .filter(|partial| *partial.mode() == AggregateMode::Partial && is_plain(partial) && is_one);
    }
    let partial = last.input().children().first()?.downcast_ref::<AggregateExec>();
    let partial = partial.filter(|partial| *partial.mode() == AggregateMode::Partial && is_plain(partial))?;
    if let Some(all) = last.input().downcast_ref::<CoalescePartitionsExec>() {
        return all.fetch().is_none().then_some(partial);
    }
    let repartition = last.input().downcast_ref::<RepartitionExec>()?;
    // Partitions are those of DataFusion: nodes above rely on them.
    let Partitioning::Hash(keys, _) = repartition.partitioning() else { return None };
    let is_key = |(number, key): (usize, &Arc<dyn PhysicalExpr>)| {
        key.downcast_ref::<Column>().is_some_and(|column| column.index() == number)
    };
    let are_keys = keys.len() == partial.group_expr().num_group_exprs() && keys.iter().enumerate().all(is_key);
    (are_keys && !repartition.preserve_order()).then_some(partial)
}

impl DisplayAs for HybridAggregateExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(first) = first_of(&self.planned) else { return Err(fmt::Error) };
        let planned = displayed(first, format);
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                let words = planned.split_once(", ").map_or(planned.as_str(), |(_, words)| words);
                write!(f, "HybridAggregateExec: {words}")?;
                let Some(projection) = arithmetic_below(first) else { return Ok(()) };
                write!(f, ", {}", displayed(projection, format).replace("ProjectionExec: expr=", "projection="))
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
        let mut recursion = TreeNodeRecursion::Continue;
        for expression in self.functions.expressions() {
            recursion = recursion.visit_sibling(|| f(expression))?;
        }
        Ok(recursion)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([input]) = <[_; 1]>::try_from(children) else {
            return internal_err!("HybridAggregateExec has one input");
        };
        let over = |node: &Arc<dyn ExecutionPlan>, input| {
            let anew = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Arc::clone(node).replace_children(vec![input], anew)
        };
        let input = match self.first()?.input() {
            projection if !Arc::ptr_eq(projection, &self.input) => over(projection, input)?,
            _ => input,
        };
        let planned = if self.is_repartitioned() {
            let states = self.planned.children()[0];
            let states = match states.children()[0] {
                _ if states.is::<AggregateExec>() => over(states, input)?,
                partial => over(states, over(partial, input)?)?,
            };
            over(&self.planned, states)?
        } else {
            over(&self.planned, input)?
        };
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
        if !self.is_repartitioned() {
            let stream = partition..partition + 1;
            return self.run(Streams { inputs: stream.clone(), outputs: stream }, context)?.begin(partition);
        }
        let mut running = self.running.lock();
        let run = match running.take().filter(|run| !run.has_begun(partition)) {
            Some(run) => run,
            None => {
                let inputs = self.input.output_partitioning().partition_count();
                self.run(Streams { inputs: 0..inputs, outputs: 0..outputs }, context)?
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
        let first = self.first()?;
        let projected = arithmetic_below(first).map(|projection| projection.statistics_from_inputs(inputs, &of_all));
        let projected = projected.transpose()?;
        let inputs = projected.as_ref().map_or(inputs, std::slice::from_ref);
        if !self.is_repartitioned() {
            return self.planned.statistics_from_inputs(inputs, &of_all);
        }
        let states = first.statistics_from_inputs(inputs, &of_all)?;
        self.planned.statistics_from_inputs(&[states], &of_all)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }
}
