//! Finds the equal parts of a logical plan.

use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;
use std::ptr;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion, TreeNodeVisitor};
use datafusion::common::{JoinType, Result};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{
    Distinct, Expr, Extension, LogicalPlan, TableSource, Volatility, WindowFunctionDefinition,
};

use super::generated_names::renamed;
use super::node::{SharedSubplan, Slot};
use crate::mark_join::NullAwareMarkJoin;

/// A query in which a [`SharedSubplan`] stands for each of several equal parts.
pub(super) struct Sharing {
    pub query: LogicalPlan,
    /// The parts. One that has others in it comes before them.
    pub subplans: Vec<(Arc<Slot>, LogicalPlan)>,
}

impl Sharing {
    /// Shares the parts of a query, largest first. Parts of parts are shared as well, if they occur elsewhere.
    pub fn of(query: &LogicalPlan) -> Result<Self> {
        let mut sharing = Self { query: query.clone(), subplans: vec![] };
        while let Some(part) = sharing.largest_repeated()? {
            let slot = Arc::new(Slot::new(sharing.subplans.len() + 1));
            let leaf = LogicalPlan::Extension(Extension {
                node: Arc::new(SharedSubplan::new(Arc::clone(&slot), Arc::clone(part.schema()))),
            });
            sharing.query = replace(sharing.query, &part, &leaf)?;
            for (_, subplan) in &mut sharing.subplans {
                *subplan = replace(std::mem::take(subplan), &part, &leaf)?;
            }
            sharing.subplans.push((slot, part));
        }
        Ok(sharing)
    }

    /// The largest part that occurs at least twice.
    fn largest_repeated(&self) -> Result<Option<LogicalPlan>> {
        let mut parts = Parts::default();
        for plan in std::iter::once(&self.query).chain(self.subplans.iter().map(|(_, plan)| plan)) {
            plan.visit_with_subqueries(&mut parts)?;
        }
        let mut found = parts.found;
        let key = |(part, _): &(Part, LogicalPlan)| (Reverse(part.nodes), part.fingerprint);
        found.sort_by_key(key);
        for alike in found.chunk_by(|one, other| key(one) == key(other)) {
            for (number, (_, plan)) in alike.iter().enumerate() {
                for (_, other) in &alike[number + 1..] {
                    if is_equal(plan, other)? {
                        return Ok(Some(plan.clone()));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Puts `leaf` in the place of each part that equals `part`.
fn replace(plan: LogicalPlan, part: &LogicalPlan, leaf: &LogicalPlan) -> Result<LogicalPlan> {
    let replaced = plan.transform_down_with_subqueries(|node| {
        if matches!(node, LogicalPlan::RecursiveQuery(_)) {
            return Ok(Transformed::new(node, false, TreeNodeRecursion::Jump));
        }
        if is_equal(&node, part)? {
            return Ok(Transformed::new(leaf.clone(), true, TreeNodeRecursion::Jump));
        }
        Ok(Transformed::no(node))
    });
    replaced.data()
}

/// Whether two plans return the same rows and columns. DataFusion does not compare what their scans read.
fn is_equal(one: &LogicalPlan, other: &LogicalPlan) -> Result<bool> {
    if one != other && !is_equal_renamed(one, other) {
        return Ok(false);
    }
    let (one, other) = (sources(one)?, sources(other)?);
    Ok(one.len() == other.len() && one.iter().zip(&other).all(|(one, other)| is_same_table(one, other)))
}

/// Whether two plans have the same columns, and differ in generated names alone.
fn is_equal_renamed(one: &LogicalPlan, other: &LogicalPlan) -> bool {
    if discriminant(one) != discriminant(other) || one.schema() != other.schema() {
        return false;
    }
    // A node that does not take other names is as good as another one.
    matches!((renamed(one), renamed(other)), (Ok(Some(one)), Ok(Some(other))) if one == other)
}

/// What the scans of a plan read, in the order of the scans.
fn sources(plan: &LogicalPlan) -> Result<Vec<Arc<dyn TableSource>>> {
    let mut sources = vec![];
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            sources.push(Arc::clone(&scan.source));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(sources)
}

fn is_same_table(one: &Arc<dyn TableSource>, other: &Arc<dyn TableSource>) -> bool {
    if ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other)) {
        return true;
    }
    match (source_as_provider(one), source_as_provider(other)) {
        (Ok(one), Ok(other)) => ptr::addr_eq(Arc::as_ptr(&one), Arc::as_ptr(&other)),
        _ => false,
    }
}

/// What is known of a node and all below it.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Equal for equal parts.
    fingerprint: u64,
    nodes: usize,
    /// Whether running it twice gives the same rows, as far as the plan shows.
    is_repeatable: bool,
    /// Whether it aggregates or sorts rows, or the like: more work than to read its rows again.
    works: bool,
    /// Whether its rows are those of such nodes, less some. Rows of a join with a table are many, and its copies may get filters
    /// from joins of their own.
    is_small: bool,
}

/// Collects the parts that could be shared.
#[derive(Debug, Default)]
struct Parts {
    /// For each node that was entered: its subqueries, and then its inputs.
    entered: Vec<Vec<Part>>,
    found: Vec<(Part, LogicalPlan)>,
}

impl<'n> TreeNodeVisitor<'n> for Parts {
    type Node = LogicalPlan;

    fn f_down(&mut self, node: &'n LogicalPlan) -> Result<TreeNodeRecursion> {
        self.entered.push(vec![]);
        // Its recursive term runs again and again.
        let is_recursive = matches!(node, LogicalPlan::RecursiveQuery(_));
        Ok(if is_recursive { TreeNodeRecursion::Jump } else { TreeNodeRecursion::Continue })
    }

    fn f_up(&mut self, node: &'n LogicalPlan) -> Result<TreeNodeRecursion> {
        let below = self.entered.pop().unwrap_or_default();
        let part = Part::of(node, &below)?;
        if part.is_repeatable && part.works && part.is_small && !is_renaming(node) {
            self.found.push((part, node.clone()));
        }
        if let Some(above) = self.entered.last_mut() {
            above.push(part);
        }
        Ok(TreeNodeRecursion::Continue)
    }
}

impl Part {
    fn of(node: &LogicalPlan, below: &[Self]) -> Result<Self> {
        let inputs = &below[below.len().saturating_sub(node.inputs().len())..];
        let reduces = match node {
            LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) | LogicalPlan::Window(_) => true,
            LogicalPlan::Sort(sort) => sort.fetch.is_some(),
            _ => false,
        };
        let mut fingerprint = DefaultHasher::new();
        discriminant(node).hash(&mut fingerprint);
        node.schema().fields().len().hash(&mut fingerprint);
        if let LogicalPlan::TableScan(scan) = node {
            scan.table_name.hash(&mut fingerprint);
        }
        for part in below {
            part.fingerprint.hash(&mut fingerprint);
        }
        Ok(Self {
            fingerprint: fingerprint.finish(),
            nodes: 1 + below.iter().map(|part| part.nodes).sum::<usize>(),
            is_repeatable: is_repeatable(node)? && below.iter().all(|part| part.is_repeatable),
            works: reduces || below.iter().any(|part| part.works),
            is_small: reduces || is_small(node, inputs),
        })
    }
}

/// Whether a node does nothing but choose columns or name them. Copies differ there more often than below.
fn is_renaming(node: &LogicalPlan) -> bool {
    match node {
        LogicalPlan::SubqueryAlias(_) => true,
        LogicalPlan::Projection(projection) => projection.expr.iter().all(is_column),
        _ => false,
    }
}

fn is_column(expr: &Expr) -> bool {
    match expr {
        Expr::Column(_) => true,
        Expr::Alias(alias) => is_column(&alias.expr),
        _ => false,
    }
}

/// Whether a node that does not reduce rows returns few, if its inputs do.
fn is_small(node: &LogicalPlan, inputs: &[Part]) -> bool {
    let are_small = |inputs: &[Part]| !inputs.is_empty() && inputs.iter().all(|part| part.is_small);
    match node {
        LogicalPlan::Join(join) => match (join.join_type, inputs) {
            (JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark, [left, _]) => left.is_small,
            (JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark, [_, right]) => right.is_small,
            _ => are_small(inputs),
        },
        LogicalPlan::Extension(extension) => match (extension.node.as_any().is::<NullAwareMarkJoin>(), inputs) {
            (true, [input, _]) => input.is_small,
            _ => extension.node.as_any().is::<SharedSubplan>(),
        },
        LogicalPlan::Values(_) | LogicalPlan::EmptyRelation(_) => true,
        LogicalPlan::Unnest(_) => false,
        _ => are_small(inputs),
    }
}

/// Whether a node returns the same rows each time, as far as it shows, if its inputs do.
fn is_repeatable(node: &LogicalPlan) -> Result<bool> {
    let is_known = match node {
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Aggregate(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Join(_)
        | LogicalPlan::Union(_)
        | LogicalPlan::EmptyRelation(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Values(_)
        | LogicalPlan::Distinct(Distinct::All(_))
        | LogicalPlan::Unnest(_) => true,
        LogicalPlan::TableScan(scan) => scan.fetch.is_none(),
        LogicalPlan::Limit(limit) => is_sorted(&limit.input),
        LogicalPlan::Extension(extension) => {
            extension.node.as_any().is::<NullAwareMarkJoin>() || extension.node.as_any().is::<SharedSubplan>()
        }
        _ => false,
    };
    let mut is_repeatable = is_known;
    if is_known {
        node.apply_expressions(|expr| {
            is_repeatable &= !expr.exists(|expr| Ok(varies(expr)))?;
            Ok(if is_repeatable { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
        })?;
    }
    Ok(is_repeatable)
}

/// Whether a plan returns rows in an order. Without one, the first rows may be any.
fn is_sorted(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Projection(projection) => is_sorted(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => is_sorted(&alias.input),
        _ => false,
    }
}

/// Whether an expression has other values the next time, or on other rows of a query around it.
fn varies(expr: &Expr) -> bool {
    let volatility = match expr {
        Expr::ScalarFunction(call) => call.func.signature().volatility,
        Expr::AggregateFunction(call) => call.func.signature().volatility,
        Expr::WindowFunction(call) => match &call.fun {
            WindowFunctionDefinition::AggregateUDF(function) => function.signature().volatility,
            WindowFunctionDefinition::WindowUDF(function) => function.signature().volatility,
        },
        Expr::HigherOrderFunction(_) | Expr::OuterReferenceColumn(..) => return true,
        Expr::ScalarSubquery(subquery) => return !subquery.outer_ref_columns.is_empty(),
        _ => return false,
    };
    volatility == Volatility::Volatile
}
