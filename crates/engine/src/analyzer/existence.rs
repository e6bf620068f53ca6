//! EXISTS outside of conditions.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::logical_plan::Subquery;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, lit};

use super::map_expressions;

/// Writes `EXISTS (SELECT … FROM s)` as `1 IN (SELECT 1 FROM s)`, for the rule `membership_to_mark_join` to plan, in SELECT
/// lists, conditions of joins, groups, aggregates and orders.
///
/// DataFusion 55 plans EXISTS only in WHERE and HAVING. There this rule leaves it to DataFusion.
pub(super) fn existence(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        let is_planned_by_host = !matches!(
            node,
            LogicalPlan::Projection(_)
                | LogicalPlan::Join(_)
                | LogicalPlan::Aggregate(_)
                | LogicalPlan::Window(_)
                | LogicalPlan::Sort(_)
        );
        if is_planned_by_host {
            return Ok(Transformed::no(node));
        }
        map_expressions(node, as_membership)
    })
    .data()
}

fn as_membership(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::Exists(Exists { subquery, negated }) = expr else { return Ok(Transformed::no(expr)) };
    let is_correlated = !subquery.subquery.all_out_ref_exprs().is_empty();
    let rows = LogicalPlanBuilder::from(Arc::unwrap_or_clone(subquery.subquery)).project([lit(1_i64)])?;
    // One row is enough for a subquery that is the same for all rows.
    let rows = if is_correlated { rows } else { rows.limit(0, Some(1))? };
    let subquery = Subquery { subquery: Arc::new(rows.build()?), ..subquery };
    Ok(Transformed::yes(Expr::InSubquery(InSubquery::new(Box::new(lit(1_i64)), subquery, negated))))
}
