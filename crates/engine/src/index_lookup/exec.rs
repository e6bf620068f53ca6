//! The plan node.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use overspill_gpu_join::Gpu;

use super::keys::LookupExecution;
use super::lookup::Lookup;
use crate::config::IndexUse;
use crate::index_scan::ScannedRows;

/// A side of a join whose key is an indexed column: either its input, or only the rows with keys of the other side, which the join
/// then looks up.
#[derive(Debug)]
pub struct IndexLookupExec {
    input: Arc<dyn ExecutionPlan>,
    lookup: Arc<Lookup>,
    /// The number of rows of the other side, if it is known when the query is planned.
    keys: Option<usize>,
    metrics: ExecutionPlanMetricsSet,
}

impl IndexLookupExec {
    pub(super) fn new(input: Arc<dyn ExecutionPlan>, lookup: Lookup) -> Self {
        Self { input, lookup: Arc::new(lookup), keys: None, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// With the number of rows that the other side has.
    pub(crate) fn for_keys(self, keys: usize) -> Self {
        Self { keys: Some(keys), ..self }
    }

    /// Starts an execution of the join above, which may use `gpu`; `None` if the index is stale.
    pub(crate) fn start(&self, used: Option<IndexUse>, gpu: Option<Arc<Gpu>>) -> Option<LookupExecution> {
        let is_stale = matches!(self.lookup.scan.rows, ScannedRows::Stale(_));
        (!is_stale).then(|| {
            let (input, lookup) = (Arc::clone(&self.input), Arc::clone(&self.lookup));
            LookupExecution::new(input, lookup, self.keys, used, gpu, &self.metrics)
        })
    }

    fn over(&self, input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let (lookup, metrics) = (Arc::clone(&self.lookup), ExecutionPlanMetricsSet::new());
        Arc::new(Self { input, lookup, keys: self.keys, metrics })
    }
}

impl DisplayAs for IndexLookupExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = self.lookup.scan.explained();
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(f, "IndexLookupExec: {index}"),
            DisplayFormatType::TreeRender => writeln!(f, "{}", index.replace(", ", "\n")),
        }
    }
}

impl ExecutionPlan for IndexLookupExec {
    fn name(&self) -> &'static str {
        "IndexLookupExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        // Rows that are looked up come in another order than the input declares. The join above relies on none.
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        f(&self.lookup.key)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(self.over(input)),
            Err(children) => internal_err!("IndexLookupExec over {} inputs", children.len()),
        }
    }

    /// Scans: only a join can look rows up, which starts the node by itself.
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("IndexLookupExec over {} inputs", inputs.len()),
        }
    }
}
