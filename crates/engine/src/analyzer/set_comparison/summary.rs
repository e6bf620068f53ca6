//! A summary of a subquery for comparisons with all its rows.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{Column, Result, ScalarValue, plan_err};
use datafusion::functions::core::expr_fn::{coalesce, named_struct};
use datafusion::functions_aggregate::expr_fn::{count, max, min};
use datafusion::logical_expr::expr::{SetComparison, SetQuantifier};
use datafusion::logical_expr::{
    Between, BinaryExpr, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Projection, Subquery, cast,
    lit,
};

use super::summary_field::{GREATEST, LEAST, ROWS, VALUES, summary_field};

/// The subquery of a comparison, as a scalar subquery that returns a structure of the least and the greatest value and the
/// numbers of rows and values.
pub(super) fn summary_of(comparison: &SetComparison) -> Result<Expr> {
    let rows = with_name(&comparison.subquery.subquery)?;
    let field = rows.schema().qualified_field(0);
    let data_type = field.1.data_type().clone();
    if data_type.is_nested() {
        let SetComparison { op, quantifier, .. } = comparison;
        return plan_err!(
            "{op} {quantifier} (SELECT …) of type {data_type} is not supported: values of this type have no least and no \
             greatest. Write EXISTS (SELECT … WHERE …) with the comparison among its conditions"
        );
    }
    let value = ordered(Expr::Column(Column::from(field)), &data_type);
    let aggregates = [min(value.clone()), max(value.clone()), count(lit(1_i64)), count(value)];
    let columns = aggregates.each_ref().map(|aggregate| Column::new_unqualified(aggregate.schema_name().to_string()));
    let fields = [LEAST, GREATEST, ROWS, VALUES]
        .into_iter()
        .zip(columns)
        .flat_map(|(name, column)| [lit(name), Expr::Column(column)])
        .collect();
    let summary = LogicalPlanBuilder::from(rows)
        .aggregate(Vec::<Expr>::new(), aggregates)?
        .project([named_struct(fields).alias("summary")])?
        .build()?;
    Ok(Expr::ScalarSubquery(Subquery {
        subquery: Arc::new(summary),
        outer_ref_columns: comparison.subquery.outer_ref_columns.clone(),
        spans: comparison.subquery.spans.clone(),
    }))
}

/// The subquery with an alias for its column: a column that is cast keeps its name, and the columns that correlate the
/// subquery may have the same name.
fn with_name(subquery: &LogicalPlan) -> Result<LogicalPlan> {
    match subquery {
        LogicalPlan::Projection(projection) => {
            let column = projection.expr[0].clone().unalias().alias("value");
            Ok(LogicalPlan::Projection(Projection::try_new(vec![column], Arc::clone(&projection.input))?))
        }
        other => Ok(other.clone()),
    }
}

/// Compares `value` with all rows of the subquery that `summary` summarises. The result is three-valued.
///
/// `bound` is the comparison with the least or the greatest value. It is NULL exactly if the value is NULL or no row has one.
///
/// ```text
/// ANY   (bound AND rows > 0)  OR  (rows > values AND NULL)
/// ALL   (bound OR rows = 0)  AND  (rows = values OR NULL)
/// ```
///
/// For a subquery without rows the result is false (ANY) or true (ALL), whatever the value. Otherwise a NULL among the rows
/// turns an ANY that is not true, and an ALL that is not false, into NULL.
pub(super) fn comparison_with(
    summary: &Expr,
    value: Expr,
    data_type: &DataType,
    comparison: &SetComparison,
) -> Result<Expr> {
    let value = ordered(value, data_type);
    let field = |name| summary_field(summary.clone(), name);
    // A correlated subquery has no summary for outer rows without any rows in it.
    let correlated = !comparison.subquery.outer_ref_columns.is_empty();
    let count = |name| if correlated { coalesce(vec![field(name), lit(0_i64)]) } else { field(name) };
    let (rows, values) = (count(ROWS), count(VALUES));
    let (least, greatest) = (field(LEAST), field(GREATEST));
    let against =
        |other: Expr| Expr::BinaryExpr(BinaryExpr::new(Box::new(value.clone()), comparison.op, Box::new(other)));
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    use SetQuantifier::{All, Any};
    let bound = match (comparison.op, &comparison.quantifier) {
        (Lt | LtEq, Any) | (Gt | GtEq, All) => against(greatest),
        (Lt | LtEq, All) | (Gt | GtEq, Any) => against(least),
        // A value is between the greatest and the least only if all rows are the same.
        (Eq, All) | (NotEq, Any) => {
            let negated = comparison.op == NotEq;
            Expr::Between(Between::new(Box::new(value), negated, Box::new(greatest), Box::new(least)))
        }
        (op, quantifier) => {
            return plan_err!(
                "{op} {quantifier} (SELECT …) is not supported: only =, <>, <, <=, > and >= compare with the rows of a \
                 subquery. Write EXISTS (SELECT … WHERE …) with the comparison among its conditions"
            );
        }
    };
    let unknown = lit(ScalarValue::Boolean(None));
    Ok(match comparison.quantifier {
        Any => bound.and(rows.clone().gt(lit(0_i64))).or(rows.gt(values).and(unknown)),
        All => bound.or(rows.clone().eq(lit(0_i64))).and(rows.eq(values).or(unknown)),
    })
}

/// The expression, cast to a type that has a least and a greatest value.
fn ordered(expr: Expr, data_type: &DataType) -> Expr {
    match data_type {
        DataType::Null => cast(expr, DataType::Boolean),
        DataType::Dictionary(_, of) => cast(expr, of.as_ref().clone()),
        _ => expr,
    }
}

/// The type of the comparison; type coercion has given it to both sides.
pub(super) fn type_of(comparison: &SetComparison) -> Result<DataType> {
    let schema = comparison.subquery.subquery.schema();
    Expr::Column(Column::from(schema.qualified_field(0))).get_type(schema)
}
