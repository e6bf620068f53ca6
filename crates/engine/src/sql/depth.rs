//! How deep a statement may be.

use datafusion::common::tree_node::{TreeNodeRecursion, TreeNodeVisitor};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::LogicalPlan;

/// The most levels of operators, functions, queries and plan nodes below one another that a statement may have once its
/// chains of `AND`, `OR`, `UNION` and `INTERSECT` are balanced.
///
/// The planner asks for the type of each level of an expression from all levels above it: its time grows with the square of
/// the depth, to some seconds at this one.
pub const MAX_DEPTH: usize = 1000;

/// Refuses a statement.
pub(super) fn too_deep() -> Result<()> {
    plan_err!(
        "The statement is nested more than {MAX_DEPTH} levels deep, by operators in a row (a + b + c …), functions, \
         subqueries or common table expressions that read one another. Split it into several statements, or put the \
         operands into a table and aggregate them"
    )
}

/// Refuses a plan of a statement that is nested deeper than [`MAX_DEPTH`], as by a chain of common table expressions.
///
/// # Errors
/// A plan error.
pub fn check_depth(plan: &LogicalPlan) -> Result<()> {
    let mut levels = Levels::default();
    plan.visit_with_subqueries(&mut levels)?;
    if levels.deepest > MAX_DEPTH { too_deep() } else { Ok(()) }
}

#[derive(Default)]
struct Levels {
    now: usize,
    deepest: usize,
}

impl<'n> TreeNodeVisitor<'n> for Levels {
    type Node = LogicalPlan;

    fn f_down(&mut self, _: &'n LogicalPlan) -> Result<TreeNodeRecursion> {
        self.now += 1;
        self.deepest = self.deepest.max(self.now);
        Ok(if self.now > MAX_DEPTH { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    }

    fn f_up(&mut self, _: &'n LogicalPlan) -> Result<TreeNodeRecursion> {
        self.now -= 1;
        Ok(TreeNodeRecursion::Continue)
    }
}
