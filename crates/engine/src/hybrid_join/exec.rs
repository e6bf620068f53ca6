//! The plan node of the hybrid join.

use std::sync::Arc;

use datafusion::common::{Result, not_impl_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, SendableRecordBatchStream,
};

/// The one join operator of Overspill.
#[derive(Debug)]
pub struct HybridJoinExec {
    plan: HashJoinExec,
}

impl HybridJoinExec {
    /// Whether the operator can run this join.
    pub fn supports(_join: &HashJoinExec) -> bool {
        false
    }

    /// Takes over a planned hash join.
    pub fn try_new(join: &HashJoinExec) -> Result<Self> {
        Ok(Self { plan: join.builder().build()? })
    }
}

impl DisplayAs for HybridJoinExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        self.plan.fmt_as(t, f)
    }
}

impl ExecutionPlan for HybridJoinExec {
    fn name(&self) -> &str {
        "HybridJoinExec"
    }
    fn properties(&self) -> &Arc<PlanProperties> {
        self.plan.properties()
    }
    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.plan.children()
    }
    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(
            &Arc<dyn datafusion::physical_expr::PhysicalExpr>,
        ) -> Result<datafusion::common::tree_node::TreeNodeRecursion>,
    ) -> Result<datafusion::common::tree_node::TreeNodeRecursion> {
        self.plan.apply_expressions(f)
    }
    fn with_new_children(self: Arc<Self>, _children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        not_impl_err!("under construction")
    }
    fn execute(&self, _partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        not_impl_err!("under construction")
    }
}
