//! `EXCEPT ALL` and `INTERSECT ALL` with counts: a row of the right side matches only one row of the left side.

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, JoinConstraint, JoinType, NullEquality, Result, ScalarValue, plan_err};
use datafusion::functions::math::expr_fn::{isnan, iszero};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{
    Distinct, Expr, ExprFunctionExt, ExprSchemable, Join, LogicalPlan, LogicalPlanBuilder, cast, lit, when,
};

use super::rejoined;

/// The column that numbers equal rows of the left side.
const LEFT_NUMBER: &str = "__overspill_left_number";

/// The column that numbers equal rows of the right side.
const RIGHT_NUMBER: &str = "__overspill_right_number";

/// Counts duplicates in `EXCEPT ALL` and `INTERSECT ALL`.
///
/// DataFusion 55 plans both as a semi or anti join on all columns, with NULL equal to NULL. So one row on the right matches
/// every equal row on the left: `(2, 2, 3) EXCEPT ALL (2)` returns 3 alone. This rule numbers the equal rows of each side and
/// joins on the number too:
///
/// ```text
/// LeftAnti Join: x = y                   LeftAnti Join: x = y AND left number = right number
///   left                         =>        row_number() OVER (PARTITION BY x)
///   right                                    left
///                                          row_number() OVER (PARTITION BY y)
///                                            right
/// ```
///
/// The n-th of equal rows on the right removes, or keeps, the n-th on the left. Rows are numbered by sorting, which spills,
/// and no join key has more than one row on either side, however frequent a row is.
///
/// The rule runs after type coercion, which has brought the columns to common types: `1` and `1.0` are equal. The rule
/// recognizes a set operation by its shape: a semi or anti join with `NULL = NULL` of each left column with the right column
/// at its place, and no filter. It leaves joins with a distinct left side alone, as these need no counts. It also leaves
/// joins alone that DataFusion's optimizer has made of predicates and that are analyzed again.
pub(super) fn set_operation_all(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Join(join) if is_set_operation_all(&join)? => Ok(Transformed::yes(counting(join)?)),
        node => Ok(Transformed::no(node)),
    })
    .data()
}

fn is_set_operation_all(join: &Join) -> Result<bool> {
    let shaped = matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti)
        && join.null_equality == NullEquality::NullEqualsNull
        && join.join_constraint == JoinConstraint::On
        && join.filter.is_none()
        && joins_all_columns(join);
    Ok(shaped
        && !matches!(join.left.as_ref(), LogicalPlan::Distinct(Distinct::All(_)))
        && !join.left.schema().has_column_with_unqualified_name(LEFT_NUMBER)
        && !has_been_optimized(&join.left)?
        && !has_been_optimized(&join.right)?)
}

/// Whether the keys are the columns of both sides, in their order.
fn joins_all_columns(join: &Join) -> bool {
    let (left, right) = (join.left.schema().columns(), join.right.schema().columns());
    join.on.len() == left.len()
        && join.on.len() == right.len()
        && join.on.iter().zip(left.iter().zip(&right)).all(|((left_key, right_key), (left, right))| {
            column_of(left_key) == Some(left) && column_of(right_key) == Some(right)
        })
}

/// The column that is the key, possibly cast to another type.
fn column_of(key: &Expr) -> Option<&Column> {
    match key {
        Expr::Column(column) => Some(column),
        Expr::Cast(cast) => column_of(&cast.expr),
        _ => None,
    }
}

/// Whether DataFusion's optimizer has processed the plan: it names the columns of every scan, and the subqueries that it has
/// joined. The set operations of such a plan have already been rewritten; a join that looks like one is a comparison by IS
/// NOT DISTINCT FROM.
fn has_been_optimized(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| {
        Ok(match node {
            LogicalPlan::TableScan(scan) => scan.projection.is_some(),
            LogicalPlan::SubqueryAlias(alias) => alias.alias.table().starts_with("__correlated_sq"),
            _ => false,
        })
    })
}

/// The join, with the numbers of equal rows as a further key.
fn counting(mut join: Join) -> Result<LogicalPlan> {
    let word = if join.join_type == JoinType::LeftAnti { "EXCEPT" } else { "INTERSECT" };
    if [&join.left, &join.right].into_iter().any(|side| !side.all_out_ref_exprs().is_empty()) {
        return plan_err!(
            "{word} ALL whose queries refer to columns of the outer query is not supported: duplicates would be counted \
             over all rows of the outer query. Without duplicates, write {word}; otherwise join the queries"
        );
    }
    let columns = join.left.schema().columns();
    let comparable = |side: &LogicalPlan, key: Expr| -> Result<Expr> {
        let data_type = key.get_type(side.schema())?;
        comparable(key, &data_type)
    };
    let mut on = std::mem::take(&mut join.on)
        .into_iter()
        .map(|(left, right)| Ok((comparable(&join.left, left)?, comparable(&join.right, right)?)))
        .collect::<Result<Vec<_>>>()?;
    let (left_keys, right_keys) = on.iter().cloned().unzip();
    let left = numbered(join.left.as_ref().clone(), left_keys, LEFT_NUMBER)?;
    let right = numbered(join.right.as_ref().clone(), right_keys, RIGHT_NUMBER)?;
    on.push((number(LEFT_NUMBER), number(RIGHT_NUMBER)));
    let join = rejoined(Join { on, ..join }, left, right)?;
    LogicalPlanBuilder::from(join).project(columns.into_iter().map(Expr::Column))?.build()
}

/// The plan with an additional column `name`, which numbers rows with equal keys from 1.
fn numbered(plan: LogicalPlan, keys: Vec<Expr>, name: &str) -> Result<LogicalPlan> {
    let columns = plan.schema().columns();
    let row_number = if keys.is_empty() { row_number() } else { row_number().partition_by(keys).build()? };
    let number = Column::new_unqualified(row_number.schema_name().to_string());
    LogicalPlanBuilder::from(plan)
        .window([row_number])?
        .project(columns.into_iter().map(Expr::Column).chain([Expr::Column(number).alias(name)]))?
        .build()
}

fn number(name: &str) -> Expr {
    Expr::Column(Column::new_unqualified(name))
}

/// The key with one zero and one NaN, so that sorting puts rows that joins consider equal into one partition.
fn comparable(key: Expr, data_type: &DataType) -> Result<Expr> {
    if !data_type.is_floating() {
        return Ok(key);
    }
    // These functions do not support 16-bit floats, and no type coercion follows this rule.
    let wide = if *data_type == DataType::Float16 { cast(key.clone(), DataType::Float32) } else { key.clone() };
    let constant = |value: f64| -> Result<Expr> { Ok(lit(ScalarValue::Float64(Some(value)).cast_to(data_type)?)) };
    when(iszero(wide.clone()), constant(0.0)?).when(isnan(wide), constant(f64::NAN)?).otherwise(key)
}
