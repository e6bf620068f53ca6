//! The plan node.

use std::fmt;
use std::sync::{Arc, Weak};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::CardinalityEffect;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use super::stream::ReaderStream;
use super::subplan::{Reader, Subplan};

/// One of several nodes that read the rows of one input, which runs once.
///
/// The input keeps its partitions and their order. It is a child of one of these nodes, and the others are leaves: the rule
/// `shared_subplans` says which. Until then all are leaves, so that rules move nothing below one of them.
///
/// Rows are kept until all of these nodes have returned them or were dropped. A node whose input is replaced reads the new one alone, until
/// all nodes are reset. A plan is executed again after
/// [`reset_plan_states`](datafusion::physical_plan::execution_plan::reset_plan_states), or once all nodes have started all their partitions.
#[derive(Debug)]
pub struct SharedSubplanExec {
    reader: Arc<Reader>,
    /// The input, if this is the node that has it in the plan.
    input: Option<Arc<dyn ExecutionPlan>>,
    /// What it read, and as which reader, before its input was replaced.
    before: Option<(Weak<Subplan>, usize)>,
    metrics: ExecutionPlanMetricsSet,
}

impl SharedSubplanExec {
    /// A further node that reads a subplan.
    pub(super) fn new(subplan: &Arc<Subplan>) -> Self {
        Self::of(subplan.add_reader(), None)
    }

    fn of(reader: Arc<Reader>, input: Option<Arc<dyn ExecutionPlan>>) -> Self {
        Self { reader, input, before: None, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// The number of the subplan in its query.
    pub(crate) fn id(&self) -> usize {
        self.reader.subplan.id
    }

    /// The input that the nodes share.
    pub(crate) fn shared_input(&self) -> Arc<dyn ExecutionPlan> {
        self.reader.subplan.input()
    }

    /// This node with the input below it. `input` has the rows of the shared input, and becomes that of all nodes.
    pub(crate) fn with_input(&self, input: Arc<dyn ExecutionPlan>) -> Self {
        self.reader.subplan.set_input(&input);
        Self::of(Arc::clone(&self.reader), Some(input))
    }
}

impl DisplayAs for SharedSubplanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, readers) = (self.id(), self.reader.subplan.readers());
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "SharedSubplanExec: id={id}, readers={readers}")
            }
            DisplayFormatType::TreeRender => writeln!(f, "id={id}\nreaders={readers}"),
        }
    }
}

impl ExecutionPlan for SharedSubplanExec {
    fn name(&self) -> &'static str {
        "SharedSubplanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.reader.subplan.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true; self.children().len()]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.input.iter().collect()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != self.children().len() {
            return internal_err!("SharedSubplanExec has {} inputs", self.children().len());
        }
        let Some(input) = children.into_iter().next() else {
            return Ok(Arc::new(Self::of(Arc::clone(&self.reader), None)));
        };
        if Arc::ptr_eq(&input, &self.shared_input()) {
            return Ok(Arc::new(Self::of(Arc::clone(&self.reader), Some(input))));
        }
        // The other nodes may remain those of a plan that runs as well. They keep their input.
        let alone = Subplan::new(self.id(), Arc::clone(&input));
        let before = self.before.clone().unwrap_or_else(|| self.reader.place());
        Ok(Arc::new(Self { before: Some(before), ..Self::of(alone.add_reader(), Some(input)) }))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let (subplan, number) = self.before.clone().unwrap_or_else(|| self.reader.place());
        let subplan = subplan.upgrade().unwrap_or_else(|| Arc::clone(&self.reader.subplan));
        let reader = subplan.reset(number).add_reader();
        if let Some(input) = &self.input {
            reader.subplan.set_input(input);
        }
        Ok(Arc::new(Self::of(reader, self.input.clone())))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (rows, reader) = self.reader.open(partition, &context)?;
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        Ok(ReaderStream::new(rows, reader, metrics).into_stream(self.schema()))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut metrics = self.metrics.clone_inner();
        if self.input.is_some() {
            for metric in self.reader.subplan.metrics().iter() {
                metrics.push(Arc::clone(metric));
            }
        }
        Some(metrics)
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        self.children().iter().map(|_| ChildStats::At(partition)).collect()
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => self.reader.subplan.statistics(args),
        }
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::Equal
    }
}
