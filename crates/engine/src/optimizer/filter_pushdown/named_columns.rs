//! The node that lets filters pass by their columns' names.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::filter_pushdown::{ChildFilterDescription, FilterDescription, FilterPushdownPhase};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use super::super::Node;

/// Lets a filter pass to its input if it uses only columns of an own name. It stands in plans only while filters are pushed down.
#[derive(Debug)]
pub(super) struct NamedColumnsExec {
    input: Node,
    named: HashSet<usize>,
}

impl NamedColumnsExec {
    /// `named` are the columns that filters may use.
    pub fn new(input: Node, named: HashSet<usize>) -> Self {
        Self { input, named }
    }

    pub fn input(&self) -> &Node {
        &self.input
    }
}

impl DisplayAs for NamedColumnsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamedColumnsExec")
    }
}

impl ExecutionPlan for NamedColumnsExec {
    fn name(&self) -> &'static str {
        "NamedColumnsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
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
        let Ok([input]) = <[_; 1]>::try_from(children) else {
            return internal_err!("NamedColumnsExec has one input");
        };
        Ok(Arc::new(Self::new(input, self.named.clone())))
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("NamedColumnsExec is taken out of plans before they run")
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn gather_filters_for_pushdown(
        &self,
        _: FilterPushdownPhase,
        parent_filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let input =
            ChildFilterDescription::from_child_with_allowed_indices(&parent_filters, self.named.clone(), &self.input)?;
        Ok(FilterDescription::new().with_child(input))
    }
}
