//! Cancellable planning, and the rule that inserts cancellable functions into plans.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::expr::WindowFunctionDefinition;
use datafusion::logical_expr::{AggregateUDF, Expr, LogicalPlan, ScalarUDF};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::{PhysicalOptimizerContext, PhysicalOptimizerRule};
use datafusion::physical_plan::ExecutionPlan;

use super::check;
use super::scalar::InterruptibleScalar;
use super::window::InterruptibleAggregate;
use crate::prepared::is_prepared;

/// A rule that checks for a cancellation before it is applied; for a rule that is applied to single nodes, before each node.
pub(super) struct Checked<R: ?Sized>(pub(super) Arc<R>);

impl<R: ?Sized + fmt::Debug> fmt::Debug for Checked<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl AnalyzerRule for Checked<dyn AnalyzerRule + Send + Sync> {
    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        check()?;
        self.0.analyze(plan, config)
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

impl OptimizerRule for Checked<dyn OptimizerRule + Send + Sync> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        check()?;
        self.0.rewrite(plan, config)
    }
}

impl PhysicalOptimizerRule for Checked<dyn PhysicalOptimizerRule + Send + Sync> {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        check()?;
        self.0.optimize(plan, config)
    }

    fn optimize_with_context(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: &dyn PhysicalOptimizerContext,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        check()?;
        self.0.optimize_with_context(plan, context)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

/// Replaces text functions, and aggregates over windows, by cancellable ones.
#[derive(Debug)]
pub(super) struct InterruptibleFunctions;

impl OptimizerRule for InterruptibleFunctions {
    fn name(&self) -> &str {
        "interruptible_functions"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        // The analysis still to come recognizes functions by their types.
        if is_prepared(config) {
            return Ok(Transformed::no(plan));
        }
        plan.map_expressions(|expr| expr.transform_up(|expr| Ok(interruptible(expr))))
    }
}

fn interruptible(expr: Expr) -> Transformed<Expr> {
    match expr {
        Expr::ScalarFunction(mut call) => match InterruptibleScalar::of(&call.func) {
            Some(function) => {
                call.func = Arc::new(ScalarUDF::new_from_impl(function));
                Transformed::yes(Expr::ScalarFunction(call))
            }
            None => Transformed::no(Expr::ScalarFunction(call)),
        },
        Expr::WindowFunction(mut call) => {
            let wrapped = match &call.fun {
                WindowFunctionDefinition::AggregateUDF(function) => InterruptibleAggregate::of(function),
                WindowFunctionDefinition::WindowUDF(_) => None,
            };
            match wrapped {
                Some(function) => {
                    call.fun = WindowFunctionDefinition::AggregateUDF(Arc::new(AggregateUDF::new_from_impl(function)));
                    Transformed::yes(Expr::WindowFunction(call))
                }
                None => Transformed::no(Expr::WindowFunction(call)),
            }
        }
        other => Transformed::no(other),
    }
}
