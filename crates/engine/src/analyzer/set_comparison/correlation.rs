//! Checks which correlated subqueries can be summarised before they are joined with the outer query.

use datafusion::common::Result;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Distinct, Expr, JoinType, LogicalPlan, Operator};

/// Returns the reason why the aggregate over a correlated subquery cannot be computed for all outer rows at once, if there is
/// one.
///
/// DataFusion groups the subquery by the columns that are compared with outer ones, and joins the groups with the outer rows.
/// That is correct if these columns reach the top of the subquery unchanged, and are compared by equality.
pub(super) fn obstacle(subquery: &LogicalPlan) -> Result<Option<String>> {
    if subquery.all_out_ref_exprs().is_empty() {
        return Ok(None);
    }
    match subquery {
        LogicalPlan::Filter(filter) => {
            let correlated = split_conjunction(&filter.predicate).into_iter().filter(|term| term.contains_outer());
            match correlated.into_iter().find(|term| !is_equality_with_column(term)) {
                Some(term) => Ok(Some(format!(
                    "the subquery refers to the outer query by {term}, which is not the equality of a column"
                ))),
                None => obstacle(&filter.input),
            }
        }
        LogicalPlan::Projection(projection) if !projection.expr.iter().any(Expr::contains_outer) => {
            obstacle(&projection.input)
        }
        LogicalPlan::Distinct(Distinct::All(input)) => obstacle(input),
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner && !subquery.contains_outer_reference() => {
            Ok(obstacle(&join.left)?.or(obstacle(&join.right)?))
        }
        _ => Ok(Some(format!("the subquery refers to the outer query in or below {}", subquery.display()))),
    }
}

/// Whether a term compares a column of the subquery with an expression of outer columns alone.
fn is_equality_with_column(term: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = term else { return false };
    let is_column = |expr: &Expr| match expr {
        Expr::Column(_) => true,
        Expr::Cast(cast) => matches!(cast.expr.as_ref(), Expr::Column(_)),
        _ => false,
    };
    (is_column(left) && !right.any_column_refs()) || (is_column(right) && !left.any_column_refs())
}
