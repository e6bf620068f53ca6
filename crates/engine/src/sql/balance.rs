//! Balances chains of associative operators in a parsed statement, and measures how deep it is.
//!
//! ```text
//!           OR                      OR
//!         OR  d                  OR    OR
//!       OR  c          →        a  b  c  d
//!      a  b
//! ```

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::common::Result;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Query, SetExpr, SetOperator, SetQuantifier, TableFactor, Value, ValueWithSpan, Values,
    VisitorMut,
};

use super::depth::{MAX_DEPTH, too_deep};

/// Shorter chains are left unchanged: the names and types of DataFusion's results must not depend on balancing.
const LONG_CHAIN: usize = 64;

/// Nested plan nodes of a query besides joins: the nodes that its clauses become.
const NODES_OF_A_QUERY: usize = 10;

/// Balances the chains of a statement, and returns how many levels its plan may have.
///
/// # Errors
/// Returns a plan error if the balanced statement is still deeper than [`MAX_DEPTH`].
pub(super) fn balance(statement: &mut Statement) -> Result<usize> {
    let mut balancing = Balancing::default();
    let visited = super::visit(statement, &mut balancing);
    if visited.is_break() { too_deep() } else { Ok(balancing.plan_levels + balancing.deepest) }
}

#[derive(Default)]
struct Balancing {
    /// Levels of expressions, queries and set operations around the visited node.
    depth: usize,
    /// The queries around the visited node.
    queries: Vec<Around>,
    /// The most levels outside any query.
    deepest: usize,
    /// The sum of the levels of all queries: common table expressions may read one another.
    plan_levels: usize,
    /// The bodies of recursive common table expressions, by address. Their outermost UNION is not an ordinary set operation:
    /// its operands are the initial rows and the repeated query.
    recursive: HashSet<*const Query>,
}

/// A query around the visited node.
struct Around {
    /// The levels around the query.
    base: usize,
    /// Levels that its set operations add.
    set_levels: usize,
    /// The most levels below it.
    deepest: usize,
}

impl Balancing {
    fn enter(&mut self, levels: usize) -> ControlFlow<()> {
        self.depth += levels;
        match self.queries.last_mut() {
            Some(query) => query.deepest = query.deepest.max(self.depth - query.base),
            None => self.deepest = self.deepest.max(self.depth),
        }
        if self.depth > MAX_DEPTH { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl VisitorMut for Balancing {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let Some(with) = query.with.as_ref().filter(|with| with.recursive) {
            self.recursive.extend(with.cte_tables.iter().map(|table| &raw const *table.query));
        }
        if !self.recursive.contains(&(&raw const *query)) {
            balance_set_operations(&mut query.body);
        }
        let levels = 1 + set_operation_levels(&query.body);
        self.queries.push(Around { base: self.depth, set_levels: levels, deepest: 0 });
        self.enter(levels)
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        if let Some(query) = self.queries.pop() {
            self.depth -= query.set_levels;
            self.plan_levels += query.deepest + NODES_OF_A_QUERY;
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, _: &mut TableFactor) -> ControlFlow<()> {
        // A join, and the name of the table.
        self.plan_levels += 2;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } = expr {
            let op = op.clone();
            balance_chain(
                expr,
                |expr| split_binary(expr, &op),
                |left, right| Expr::BinaryOp { left: Box::new(left), op: op.clone(), right: Box::new(right) },
            );
        }
        self.enter(1)
    }

    fn post_visit_expr(&mut self, _: &mut Expr) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }
}

/// A placeholder for a tree while the tree is taken apart.
pub(super) trait Vacant {
    fn vacant() -> Self;
}

impl Vacant for Expr {
    fn vacant() -> Self {
        Expr::Value(ValueWithSpan::from(Value::Null))
    }
}

impl Vacant for SetExpr {
    fn vacant() -> Self {
        SetExpr::Values(Values { explicit_row: false, value_keyword: false, rows: vec![] })
    }
}

/// The two operands of a tree if its root belongs to the chain; otherwise the tree itself.
type Split<T> = Result<(T, T), Box<T>>;

/// Makes a balanced tree of a long chain that leans to the left. The operands keep their order.
fn balance_chain<T: Vacant>(tree: &mut T, split: impl Fn(T) -> Split<T>, join: impl Fn(T, T) -> T) {
    let mut operands = vec![];
    let mut rest = std::mem::replace(tree, T::vacant());
    loop {
        match split(rest) {
            Ok((left, right)) => {
                operands.push(right);
                rest = left;
            }
            Err(first) => {
                operands.push(*first);
                break;
            }
        }
    }
    operands.reverse();
    let mut operands = operands.into_iter();
    let count = operands.len();
    *tree = if count < LONG_CHAIN {
        // As before: the first operand is the deepest.
        let first = operands.next().unwrap_or_else(T::vacant);
        operands.fold(first, &join)
    } else {
        balanced(&mut operands, count, &join)
    };
}

/// Joins the next `count` operands, one at least, halves first.
pub(super) fn balanced<T: Vacant>(
    operands: &mut impl Iterator<Item = T>,
    count: usize,
    join: &impl Fn(T, T) -> T,
) -> T {
    if count <= 1 {
        return operands.next().unwrap_or_else(T::vacant);
    }
    let left = balanced(operands, count / 2, join);
    let right = balanced(operands, count - count / 2, join);
    join(left, right)
}

fn split_binary(expr: Expr, chain: &BinaryOperator) -> Split<Expr> {
    match expr {
        Expr::BinaryOp { left, op, right } if op == *chain => Ok((*left, *right)),
        other => Err(Box::new(other)),
    }
}

/// Balances the set operations of a query, and the nested set operations of other kinds.
fn balance_set_operations(body: &mut SetExpr) {
    // Chains of several kinds lie below one another, as in `a UNION ALL b UNION c`: walk down to the left.
    let mut below = body;
    while let SetExpr::SetOperation { op, set_quantifier, .. } = below {
        let (op, set_quantifier) = (*op, *set_quantifier);
        if is_associative(op, set_quantifier) {
            balance_chain(
                below,
                |tree| split_set_operation(tree, op, set_quantifier),
                |left, right| SetExpr::SetOperation {
                    op,
                    set_quantifier,
                    left: Box::new(left),
                    right: Box::new(right),
                },
            );
        }
        // The end of this chain.
        let mut first = below;
        while matches!(first, SetExpr::SetOperation { op: next, set_quantifier: quantifier, .. }
            if *next == op && *quantifier == set_quantifier)
        {
            let SetExpr::SetOperation { left, .. } = first else { return };
            first = left;
        }
        below = first;
    }
}

/// Whether operands may be grouped in any way. Set operations by name match columns by the names of the first operand.
fn is_associative(op: SetOperator, quantifier: SetQuantifier) -> bool {
    matches!(
        (op, quantifier),
        (SetOperator::Union, SetQuantifier::All | SetQuantifier::Distinct | SetQuantifier::None)
            | (SetOperator::Intersect, SetQuantifier::Distinct | SetQuantifier::None)
    )
}

fn split_set_operation(tree: SetExpr, chain: SetOperator, quantifier: SetQuantifier) -> Split<SetExpr> {
    match tree {
        SetExpr::SetOperation { left, op, set_quantifier, right } if op == chain && set_quantifier == quantifier => {
            Ok((*left, *right))
        }
        other => Err(Box::new(other)),
    }
}

/// The levels of set operations in the body of a query. Nested queries in parentheses are counted separately.
fn set_operation_levels(body: &SetExpr) -> usize {
    let mut deepest = 0;
    let mut pending = vec![(body, 0)];
    while let Some((tree, level)) = pending.pop() {
        deepest = deepest.max(level);
        if let SetExpr::SetOperation { left, right, .. } = tree {
            pending.push((left, level + 1));
            pending.push((right, level + 1));
        }
    }
    deepest
}
