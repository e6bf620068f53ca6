//! `(a, b) IN (SELECT x, y …)`, which DataFusion 55 refuses for its several columns.
//!
//! As a condition of `WHERE` it becomes
//!
//! ```text
//! (a, b) IN (q)       EXISTS (SELECT 1 FROM (q) AS r(x, y) WHERE a = r.x AND b = r.y)
//! (a, b) NOT IN (q)   NOT EXISTS (SELECT 1 FROM (q) AS r(x, y) WHERE (a = r.x AND b = r.y) IS NOT FALSE)
//! ```
//!
//! A row for which the membership is unknown is treated like one for which it is false. Outside `WHERE` such a membership is
//! refused.

use std::ops::ControlFlow;

use datafusion::common::{DataFusionError, Result, plan_datafusion_err};
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, Expr, Ident, Query, Select, SetExpr, TableFactor, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

use super::balance::balanced;

/// The name of the subquery as a table, which must not be one of the query's own.
const ROWS: &str = "rows of IN";

/// Rewrites the memberships of rows in a statement.
pub(super) fn write_out(statement: &mut Statement) -> Result<()> {
    match super::visit(statement, &mut Memberships) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Memberships;

impl VisitorMut for Memberships {
    type Break = DataFusionError;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        let mut conjuncts: Vec<_> = select.selection.iter_mut().collect();
        while let Some(conjunct) = conjuncts.pop() {
            match conjunct {
                Expr::BinaryOp { left, op: BinaryOperator::And, right } => conjuncts.extend([left.as_mut(), right]),
                Expr::Nested(inner) => conjuncts.push(inner),
                membership => {
                    if let Some(existence) = existence(membership) {
                        *membership = existence;
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<DataFusionError> {
        match expr {
            Expr::InSubquery { expr: row, .. } if matches!(row.as_ref(), Expr::Tuple(_)) => {
                ControlFlow::Break(plan_datafusion_err!(
                    "A row of several values on the left of IN (SELECT …) is only supported as a condition of WHERE, \
                     alone or joined with others by AND. Write EXISTS (SELECT 1 FROM … WHERE …) with an equality for \
                     each value"
                ))
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Rewrites a membership of a row as a condition of WHERE. Returns None for other expressions.
fn existence(membership: &Expr) -> Option<Expr> {
    let Expr::InSubquery { expr: row, subquery, negated } = membership else { return None };
    let Expr::Tuple(values) = row.as_ref() else { return None };
    let name = |number: usize| format!("value {number}");
    let equalities = values.iter().enumerate().map(|(number, value)| Expr::BinaryOp {
        left: Box::new(Expr::Nested(Box::new(value.clone()))),
        op: BinaryOperator::Eq,
        right: Box::new(Expr::CompoundIdentifier(
            [ROWS.to_string(), name(number)].map(|part| Ident::with_quote('"', part)).to_vec(),
        )),
    });
    let and = |left, right| Expr::BinaryOp { left: Box::new(left), op: BinaryOperator::And, right: Box::new(right) };
    let is_equal = balanced(&mut equalities.into_iter(), values.len(), &and);
    let condition = if *negated { Expr::IsNotFalse(Box::new(Expr::Nested(Box::new(is_equal)))) } else { is_equal };
    let columns: Vec<_> = (0..values.len()).map(|number| format!("\"{}\"", name(number))).collect();
    let rows = format!("SELECT 1 FROM (SELECT 1) AS \"{ROWS}\" ({})", columns.join(", "));
    let mut exists = parsed(&rows)?;
    let SetExpr::Select(select) = exists.body.as_mut() else { return None };
    let TableFactor::Derived { subquery: members, .. } = &mut select.from.first_mut()?.relation else { return None };
    *members = subquery.clone();
    select.selection = Some(condition);
    Some(Expr::Exists { subquery: exists, negated: *negated })
}

fn parsed(text: &str) -> Option<Box<Query>> {
    match Parser::parse_sql(&GenericDialect, text).ok()?.pop() {
        Some(ast::Statement::Query(query)) => Some(query),
        _ => None,
    }
}
