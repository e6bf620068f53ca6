//! `IS TRUE`, `IS FALSE` and `IS UNKNOWN`.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, Operator, Union, binary_expr, lit};

use super::map_expressions;

/// Writes `b IS TRUE` as `b IS NOT DISTINCT FROM true`, and the others in the same way.
///
/// DataFusion 55 runs them like this, but its logical plan says that they are never NULL and its physical plan that they may
/// be NULL. This is an internal error below `DISTINCT` and groups.
pub(super) fn truth_tests(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    let mut is_changed = false;
    plan.transform_up_with_subqueries(|node| {
        let rewritten = map_expressions(node, as_distinction)?;
        is_changed |= rewritten.transformed;
        if !is_changed {
            return Ok(rewritten);
        }
        // The nodes above have columns that may now be NULL.
        let node = match rewritten.data {
            LogicalPlan::Union(union) => with_nullable_columns(union)?,
            node => node.recompute_schema()?,
        };
        Ok(Transformed::yes(node))
    })
    .data()
}

fn as_distinction(expr: Expr) -> Result<Transformed<Expr>> {
    let (operand, operator, value) = match expr {
        Expr::IsTrue(operand) => (operand, Operator::IsNotDistinctFrom, true),
        Expr::IsFalse(operand) => (operand, Operator::IsNotDistinctFrom, false),
        Expr::IsNotTrue(operand) => (operand, Operator::IsDistinctFrom, true),
        Expr::IsNotFalse(operand) => (operand, Operator::IsDistinctFrom, false),
        Expr::IsUnknown(operand) => return Ok(Transformed::yes(operand.is_null())),
        Expr::IsNotUnknown(operand) => return Ok(Transformed::yes(operand.is_not_null())),
        other => return Ok(Transformed::no(other)),
    };
    Ok(Transformed::yes(binary_expr(*operand, operator, lit(value))))
}

/// Marks columns as nullable that are nullable in an input. Recomputing the schema of a UNION does not change this.
fn with_nullable_columns(union: Union) -> Result<LogicalPlan> {
    let fields = union.schema.iter().enumerate().map(|(place, (table, field))| {
        let is_nullable = union.inputs.iter().any(|input| input.schema().field(place).is_nullable());
        (table.cloned(), Arc::new(field.as_ref().clone().with_nullable(is_nullable)))
    });
    let schema = DFSchema::new_with_metadata(fields.collect(), union.schema.metadata().clone())?;
    Ok(LogicalPlan::Union(Union { schema: Arc::new(schema), ..union }))
}
