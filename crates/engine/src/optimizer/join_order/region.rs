//! Joins of a plan that may be ordered together.

use std::sync::Arc;

use datafusion::common::{JoinSide, JoinType, NullEquality, Result};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::{collect_columns, split_conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::projection::ProjectionExec;
use overspill_planner::{Join, JoinKind, Node as Tree, RelationSet};

use super::super::Node;
use super::conditions::{Condition, Expression, LeafColumn};

/// A tree of hash joins, and of projections of columns above them.
///
/// Its inputs, the leaves, are all other nodes below: scans, filters, aggregates, limits, joins that are no hash joins, mark joins,
/// and joins whose condition calls a volatile function.
pub(super) struct JoinRegion {
    /// The inputs, from left to right.
    pub leaves: Vec<Node>,
    /// The conditions of all joins: the predicates of `root`.
    pub conditions: Vec<Condition>,
    /// The joins as written. The tags of those that are fixed are numbers of `fixed`.
    pub root: Tree,
    /// The joins that keep their inputs and sides.
    pub fixed: Vec<Node>,
    /// The columns that the region gives.
    pub output: Vec<LeafColumn>,
}

/// A part of a region.
struct Part {
    tree: Tree,
    columns: Vec<LeafColumn>,
    relations: RelationSet,
    /// Whether all relations are visible above: none is on the other side of a semi or anti join.
    shows_all: bool,
}

impl JoinRegion {
    /// The region below a node; `None` if there is none, or one that is too large.
    pub fn of(plan: &Node) -> Option<Self> {
        if !is_inside(plan) || is_too_large(plan) {
            return None;
        }
        let mut region =
            Self { leaves: vec![], conditions: vec![], root: Tree::Leaf(0), fixed: vec![], output: vec![] };
        let Part { tree, columns, .. } = region.add(plan);
        (region.root, region.output) = (tree, columns);
        Some(region)
    }

    fn add(&mut self, node: &Node) -> Part {
        if !is_inside(node) {
            let leaf = self.leaves.len();
            self.leaves.push(Arc::clone(node));
            let columns = (0..node.schema().fields().len()).map(|column| LeafColumn { leaf, column });
            let relations = RelationSet::single(leaf);
            return Part { tree: Tree::Leaf(leaf), columns: columns.collect(), relations, shows_all: true };
        }
        match node.downcast_ref::<HashJoinExec>() {
            Some(join) => self.add_join(node, join),
            None => {
                let below = self.add(node.children()[0]);
                let columns = projected(node).unwrap_or_default().into_iter().map(|column| below.columns[column]);
                Part { columns: columns.collect(), ..below }
            }
        }
    }

    fn add_join(&mut self, node: &Node, join: &HashJoinExec) -> Part {
        let (left, right) = (self.add(join.left()), self.add(join.right()));
        let relations = left.relations | right.relations;
        let first = self.conditions.len();
        self.add_conditions(join, &left, &right);
        let shows_all = left.shows_all && right.shows_all;
        let is_free = join.null_equality() == NullEquality::NullEqualsNothing
            && !join.null_aware
            && self.conditions[first..].iter().all(|condition| condition.is_free(shows_all));
        let tag = (!is_free).then(|| {
            self.fixed.push(Arc::clone(node));
            self.fixed.len() - 1
        });
        let (kind, all) = match *join.join_type() {
            JoinType::LeftSemi => (JoinKind::LeftSemi, left.columns),
            JoinType::LeftAnti => (JoinKind::LeftAnti, left.columns),
            JoinType::RightSemi => (JoinKind::RightSemi, right.columns),
            JoinType::RightAnti => (JoinKind::RightAnti, right.columns),
            JoinType::Left => (JoinKind::LeftOuter, [left.columns, right.columns].concat()),
            JoinType::Right => (JoinKind::RightOuter, [left.columns, right.columns].concat()),
            JoinType::Full => (JoinKind::FullOuter, [left.columns, right.columns].concat()),
            // Mark joins are not inside of a region.
            JoinType::Inner | JoinType::LeftMark | JoinType::RightMark => {
                (JoinKind::Inner, [left.columns, right.columns].concat())
            }
        };
        let shows_both =
            !matches!(kind, JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::RightSemi | JoinKind::RightAnti);
        let columns = match &join.projection {
            Some(projection) => projection.iter().map(|column| all[*column]).collect(),
            None => all,
        };
        let tree = Tree::Join(Box::new(Join {
            kind,
            fixed: !is_free,
            tag,
            left: left.tree,
            right: right.tree,
            predicates: (first..self.conditions.len()).collect(),
        }));
        Part { tree, columns, relations, shows_all: shows_all && shows_both }
    }

    fn add_conditions(&mut self, join: &HashJoinExec, left: &Part, right: &Part) {
        let (of_left, of_right) = (Arc::from(left.columns.as_slice()), Arc::from(right.columns.as_slice()));
        let (left_schema, right_schema) = (join.left().schema(), join.right().schema());
        for (left, right) in join.on() {
            let left = Expression { expression: Arc::clone(left), columns: Arc::clone(&of_left) };
            let right = Expression { expression: Arc::clone(right), columns: Arc::clone(&of_right) };
            self.conditions.push(Condition::equal([left, right], [&left_schema, &right_schema]));
        }
        let Some(filter) = join.filter() else { return };
        let columns = filter.column_indices().iter().map(|column| match column.side {
            JoinSide::Right => right.columns[column.index],
            JoinSide::Left | JoinSide::None => left.columns[column.index],
        });
        let columns: Arc<[LeafColumn]> = columns.collect();
        for part in split_conjunction(filter.expression()) {
            let filter_part = Expression { expression: Arc::clone(part), columns: Arc::clone(&columns) };
            let joined = visible(left) | visible(right);
            self.conditions.push(Condition::filter(filter_part, filter.schema(), joined));
        }
    }
}

/// The relations of a part that a condition above may need: all, if it shows all.
fn visible(part: &Part) -> RelationSet {
    if part.shows_all { part.relations } else { part.columns.iter().map(|column| column.leaf).collect() }
}

/// Whether a node is part of a region, and no leaf: a join that the planner knows, or a projection of columns above one.
fn is_inside(mut node: &Node) -> bool {
    while projected(node).is_some() {
        node = node.children()[0];
    }
    node.downcast_ref::<HashJoinExec>().is_some_and(|join| is_known(node, join))
}

/// The columns that a node projects, if it does nothing else.
fn projected(node: &Node) -> Option<Vec<usize>> {
    let expressions = node.downcast_ref::<ProjectionExec>()?.expr().iter();
    expressions.map(|projected| Some(projected.expr.downcast_ref::<Column>()?.index())).collect()
}

/// Whether the planner knows what the join does. Each key must have columns.
fn is_known(node: &Node, join: &HashJoinExec) -> bool {
    let is_mark = matches!(join.join_type(), JoinType::LeftMark | JoinType::RightMark);
    let keys = || join.on().iter().flat_map(|(left, right)| [left, right]);
    !is_mark
        && node.fetch().is_none()
        && keys().all(|key| !collect_columns(key).is_empty())
        && !keys().chain(join.filter().map(JoinFilter::expression)).any(is_volatile)
}

/// Whether a region has more leaves than can be ordered.
fn is_too_large(root: &Node) -> bool {
    let (mut nodes, mut leaves) = (vec![root], 0);
    while let Some(node) = nodes.pop() {
        match is_inside(node) {
            true => nodes.extend(node.children()),
            false => leaves += 1,
        }
        // Each node that waits has a leaf.
        if leaves + nodes.len() > RelationSet::CAPACITY {
            return true;
        }
    }
    false
}

/// A region as written, over other leaves with the same columns.
pub(super) fn with_leaves(node: &Node, leaves: &mut impl Iterator<Item = Node>) -> Result<Node> {
    if !is_inside(node) {
        return Ok(leaves.next().expect("as many leaves as the region has"));
    }
    let children = node.children().into_iter().map(|child| with_leaves(child, leaves)).collect::<Result<Vec<_>>>()?;
    replace_children_if_necessary(Arc::clone(node), children)
}
