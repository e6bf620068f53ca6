//! Scalar subqueries without FROM.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::logical_plan::Subquery;
use datafusion::logical_expr::{Expr, LogicalPlan, when};

use super::{input_schema, map_expressions};

/// Rewrites `(SELECT x)` as `x`, and `(SELECT x WHERE c)` as `CASE WHEN c THEN x END`.
///
/// DataFusion 55 refuses such a subquery if it names columns of the outer query. If its value has no NULLs, DataFusion
/// reports a subquery without a row as an error.
pub(super) fn scalar_values(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    let mut is_changed = false;
    plan.transform_up_with_subqueries(|node| {
        let schema = input_schema(&node)?;
        let rewritten = map_expressions(node, |expr| match expr {
            Expr::ScalarSubquery(subquery) => value_of(subquery, &schema),
            other => Ok(Transformed::no(other)),
        })?;
        is_changed |= rewritten.transformed;
        // Columns of the nodes above may now be NULL.
        if is_changed { Ok(Transformed::yes(rewritten.data.recompute_schema()?)) } else { Ok(rewritten) }
    })
    .data()
}

/// The value of a subquery without FROM in a node with this input schema.
fn value_of(subquery: Subquery, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Some((value, condition)) = parts(&subquery.subquery) else {
        return Ok(Transformed::no(Expr::ScalarSubquery(subquery)));
    };
    // Columns of queries farther out are unchanged.
    let inner = |expr: &Expr| {
        let rewritten = expr.clone().transform_up(|expr| match expr {
            Expr::OuterReferenceColumn(_, column) if schema.has_column(&column) => {
                Ok(Transformed::yes(Expr::Column(column)))
            }
            other => Ok(Transformed::no(other)),
        });
        rewritten.data()
    };
    let value = inner(value)?;
    let value = match condition {
        None => value,
        Some(condition) => when(inner(condition)?, value).end()?,
    };
    Ok(Transformed::yes(value))
}

/// The expression and the condition of a subquery without FROM.
fn parts(plan: &LogicalPlan) -> Option<(&Expr, Option<&Expr>)> {
    let LogicalPlan::Projection(projection) = plan else { return None };
    let [value] = projection.expr.as_slice() else { return None };
    let (input, condition) = match projection.input.as_ref() {
        LogicalPlan::Filter(filter) => (filter.input.as_ref(), Some(&filter.predicate)),
        input => (input, None),
    };
    let is_row = matches!(input, LogicalPlan::EmptyRelation(empty) if empty.produce_one_row);
    let value = match value {
        Expr::Alias(alias) => alias.expr.as_ref(),
        value => value,
    };
    // A single value for all rows remains a single value.
    let is_volatile = value.is_volatile() || condition.is_some_and(Expr::is_volatile);
    (is_row && !is_volatile).then_some((value, condition))
}
