//! Optimizer rules that wait for the analysis of a plan.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// Whether the plan being optimized has not been analyzed.
///
/// DataFusion 55 optimizes the plan of a `PREPARE` as the query wrote it, and analyzes it at `EXECUTE`. By then subqueries are
/// joins and sums are wrapped, so the rules of [`analyzer`](crate::analyzer) find nothing to fix. Such a plan is recognized by
/// its context: unlike a session's context, it has no functions.
pub(crate) fn is_prepared(config: &dyn OptimizerConfig) -> bool {
    config.function_registry().is_none() && config.query_execution_start_time().is_none()
}

/// An optimizer rule that does not change the plan of a `PREPARE`. `EXECUTE` analyzes and optimizes the plan.
pub(crate) struct Analyzed(pub Arc<dyn OptimizerRule + Send + Sync>);

impl Debug for Analyzed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl OptimizerRule for Analyzed {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if is_prepared(config) { Ok(Transformed::no(plan)) } else { self.0.rewrite(plan, config) }
    }
}
