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
use super::equalities::EqualColumns;

/// The most conditions of a join to which equalities are added that follow from others. Each pair of sides that the planner compares costs time by
/// their number.
const MOST_CONDITIONS: usize = 16;

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
    /// The numbers of the conditions that are equalities of columns at inner joins.
    equalities: Vec<usize>,
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
    /// The columns that are equal in each of its rows.
    equal: EqualColumns,
}

impl JoinRegion {
    /// The region below a node; `None` if there is none, or one that is too large.
    pub fn of(plan: &Node) -> Option<Self> {
        if !is_inside(plan) || is_too_large(plan) {
            return None;
        }
        let mut region = Self {
            leaves: vec![],
            conditions: vec![],
            root: Tree::Leaf(0),
            fixed: vec![],
            equalities: vec![],
            output: vec![],
        };
        let Part { tree, columns, .. } = region.add(plan);
        (region.root, region.output) = (tree, columns);
        Some(region)
    }

    /// For each condition, a number that it shares with the equalities that follow from it and others, if it is such an equality.
    pub fn classes(&self) -> Vec<Option<usize>> {
        let plain = |number: &usize| self.conditions[*number].plain_columns().expect("these are equalities of columns");
        let mut equal = EqualColumns::default();
        self.equalities.iter().for_each(|number| {
            equal.add(plain(number));
        });
        let mut classes = vec![None; self.conditions.len()];
        self.equalities.iter().for_each(|number| classes[*number] = equal.position(plain(number)[0]));
        classes
    }

    fn add(&mut self, node: &Node) -> Part {
        if !is_inside(node) {
            let leaf = self.leaves.len();
            self.leaves.push(Arc::clone(node));
            let columns = (0..node.schema().fields().len()).map(|column| LeafColumn { leaf, column });
            let relations = RelationSet::single(leaf);
            let equal = EqualColumns::default();
            return Part { tree: Tree::Leaf(leaf), columns: columns.collect(), relations, shows_all: true, equal };
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
        let (relations, of_left) = (left.relations | right.relations, left.relations);
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
        let kind = kind(*join.join_type());
        let mut equal = remaining(kind, left.equal, right.equal);
        if kind == JoinKind::Inner && join.null_equality() == NullEquality::NullEqualsNothing {
            self.add_equalities(&mut equal, first, of_left, is_free);
        }
        let (shows_left, shows_right) = shows(kind);
        let all = match (shows_left, shows_right) {
            (true, true) => [left.columns, right.columns].concat(),
            (true, false) => left.columns,
            _ => right.columns,
        };
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
        Part { tree, columns, relations, shows_all: shows_all && shows_left && shows_right, equal }
    }

    /// Adds the equalities of an inner join, whose conditions begin at `first`, to what is `equal`. Where the join may move, the equalities of its
    /// sides that follow become conditions too.
    fn add_equalities(&mut self, equal: &mut EqualColumns, first: usize, of_left: RelationSet, is_free: bool) {
        let given: Vec<usize> = (first..self.conditions.len())
            .filter(|number| self.conditions[*number].plain_columns().is_some())
            .collect();
        let given_columns: Vec<[LeafColumn; 2]> =
            given.iter().filter_map(|number| self.conditions[*number].plain_columns()).collect();
        for columns in &given_columns {
            equal.add(*columns);
        }
        self.equalities.extend(given);
        if !is_free || given_columns.is_empty() {
            return;
        }
        let following =
            equal.pairs(|column| of_left.contains(column.leaf)).filter(|pair| !given_columns.contains(pair));
        let room = MOST_CONDITIONS.saturating_sub(self.conditions.len() - first);
        for pair in following.take(room) {
            self.equalities.push(self.conditions.len());
            self.conditions.push(Condition::equal_columns(pair));
        }
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

/// What the planner calls a join type.
fn kind(join_type: JoinType) -> JoinKind {
    match join_type {
        JoinType::LeftSemi => JoinKind::LeftSemi,
        JoinType::LeftAnti => JoinKind::LeftAnti,
        JoinType::RightSemi => JoinKind::RightSemi,
        JoinType::RightAnti => JoinKind::RightAnti,
        JoinType::Left => JoinKind::LeftOuter,
        JoinType::Right => JoinKind::RightOuter,
        JoinType::Full => JoinKind::FullOuter,
        // Mark joins are not inside of a region.
        JoinType::Inner | JoinType::LeftMark | JoinType::RightMark => JoinKind::Inner,
    }
}

/// Whether a join shows the columns of its left and right side.
fn shows(kind: JoinKind) -> (bool, bool) {
    match kind {
        JoinKind::LeftSemi | JoinKind::LeftAnti => (true, false),
        JoinKind::RightSemi | JoinKind::RightAnti => (false, true),
        _ => (true, true),
    }
}

/// What is equal in all rows of a join, besides its own conditions, of what is in those of its sides. The columns of a side that an outer join
/// fills with nulls are null in some.
pub(super) fn remaining(kind: JoinKind, left: EqualColumns, right: EqualColumns) -> EqualColumns {
    match kind {
        JoinKind::Inner => left.of_both(right),
        JoinKind::LeftOuter | JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::LeftMark => left,
        JoinKind::RightOuter | JoinKind::RightSemi | JoinKind::RightAnti | JoinKind::RightMark => right,
        JoinKind::FullOuter => EqualColumns::default(),
    }
}

/// The relations of a part that a condition above may need: all, if it shows all.
fn visible(part: &Part) -> RelationSet {
    if part.shows_all { part.relations } else { part.columns.iter().map(|column| column.leaf).collect() }
}

/// Whether a node is part of a region, and no leaf: a join that the planner knows, or a projection of columns above one.
pub(super) fn is_inside(mut node: &Node) -> bool {
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
