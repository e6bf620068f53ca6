//! Subqueries in place of a value.

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;

use crate::error::refused;

/// Refuses subqueries in place of a value that may have several rows.
///
/// In one process DataFusion 55 runs such a subquery by itself, and a second row is an error. On a cluster it becomes a join, which
/// would return the rows around it once for each row of the subquery.
#[derive(Debug)]
pub struct OneRowSubqueries;

impl AnalyzerRule for OneRowSubqueries {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.apply_with_subqueries(|node| {
            node.apply_expressions(|expr| {
                expr.apply(|expr| match expr {
                    // DataFusion checks those that refer to columns around them.
                    Expr::ScalarSubquery(subquery)
                        if subquery.outer_ref_columns.is_empty()
                            && subquery.subquery.max_rows().is_none_or(|rows| rows > 1) =>
                    {
                        refused(
                            "A subquery in place of a value may have several rows, which a cluster does not notice: write an \
                             aggregate such as max in it, or LIMIT 1, or run the query without --cluster",
                        )
                    }
                    _ => Ok(TreeNodeRecursion::Continue),
                })
            })
        })?;
        Ok(plan)
    }

    fn name(&self) -> &str {
        "one_row_subqueries"
    }
}
