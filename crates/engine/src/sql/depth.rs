//! How deep a statement may be.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion, TreeNodeVisitor};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::{Expr, LogicalPlan};

/// The maximum number of nested levels (operators, functions, queries and plan nodes) in a statement after its chains of
/// `AND`, `OR`, `UNION` and `INTERSECT` are balanced.
///
/// At each level, the planner asks for the types of all levels below it, so its time grows with the square of the depth. At
/// this depth it takes some seconds.
pub const MAX_DEPTH: usize = 1000;

/// Refuses a statement.
pub(super) fn too_deep<T>() -> Result<T> {
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
pub(super) fn check_depth(plan: &LogicalPlan) -> Result<()> {
    let mut levels = Levels::default();
    plan.visit_with_subqueries(&mut levels)?;
    if levels.most_nodes > MAX_DEPTH { too_deep() } else { Ok(()) }
}

/// The number of levels of a plan and its expressions, for [`on_large_stack`](super::on_large_stack). The optimizer may nest
/// the expressions in one another. Levels of views and prepared statements are included.
///
/// # Errors
/// Returns the errors of walking over a plan.
pub fn depth(plan: &LogicalPlan) -> Result<usize> {
    let mut levels = Levels::default();
    plan.visit_with_subqueries(&mut levels)?;
    Ok(levels.deepest)
}

#[derive(Default)]
struct Levels {
    /// For each node around the visited one, the number of its levels including its expressions, and the same for the visited
    /// node.
    nodes: Vec<usize>,
    most_nodes: usize,
    now: usize,
    deepest: usize,
}

impl<'n> TreeNodeVisitor<'n> for Levels {
    type Node = LogicalPlan;

    fn f_down(&mut self, node: &'n LogicalPlan) -> Result<TreeNodeRecursion> {
        let mut expressions = ExpressionLevels::default();
        node.apply_expressions(|expr| expr.visit(&mut expressions))?;
        let levels = 1 + expressions.deepest;
        self.nodes.push(levels);
        self.most_nodes = self.most_nodes.max(self.nodes.len());
        self.now += levels;
        self.deepest = self.deepest.max(self.now);
        Ok(if self.nodes.len() > MAX_DEPTH { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    }

    fn f_up(&mut self, _: &'n LogicalPlan) -> Result<TreeNodeRecursion> {
        self.now -= self.nodes.pop().unwrap_or_default();
        Ok(TreeNodeRecursion::Continue)
    }
}

#[derive(Default)]
struct ExpressionLevels {
    now: usize,
    deepest: usize,
}

impl<'n> TreeNodeVisitor<'n> for ExpressionLevels {
    type Node = Expr;

    fn f_down(&mut self, _: &'n Expr) -> Result<TreeNodeRecursion> {
        self.now += 1;
        self.deepest = self.deepest.max(self.now);
        Ok(TreeNodeRecursion::Continue)
    }

    fn f_up(&mut self, _: &'n Expr) -> Result<TreeNodeRecursion> {
        self.now -= 1;
        Ok(TreeNodeRecursion::Continue)
    }
}
