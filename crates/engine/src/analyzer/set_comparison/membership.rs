//! `= ANY` is IN, and `<> ALL` is NOT IN.

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::expr::{InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};
use datafusion::optimizer::AnalyzerRule;

/// Writes `x = ANY (SELECT …)` as `x IN (SELECT …)`, and `x <> ALL (SELECT …)` as `x NOT IN (SELECT …)`, which are
/// the same by definition, so that one rule plans both.
#[derive(Debug, Default)]
pub struct MembershipComparison {}

impl MembershipComparison {
    /// The rule; it has no state.
    pub fn new() -> Self {
        Self {}
    }
}

impl AnalyzerRule for MembershipComparison {
    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|node| {
            let names = NamePreserver::new(&node);
            node.map_expressions(|expr| {
                let name = names.save(&expr);
                Ok(expr.transform_up(|expr| Ok(as_membership(expr)))?.update_data(|expr| name.restore(expr)))
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "overspill_membership_comparison"
    }
}

fn as_membership(expr: Expr) -> Transformed<Expr> {
    let Expr::SetComparison(comparison) = expr else { return Transformed::no(expr) };
    let negated = match (comparison.op, &comparison.quantifier) {
        (Operator::Eq, SetQuantifier::Any) => false,
        (Operator::NotEq, SetQuantifier::All) => true,
        _ => return Transformed::no(Expr::SetComparison(comparison)),
    };
    let SetComparison { expr, subquery, .. } = comparison;
    Transformed::yes(Expr::InSubquery(InSubquery::new(expr, subquery, negated)))
}
