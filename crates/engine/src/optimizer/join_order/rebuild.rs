//! Joins of a region in another order.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{JoinSide, JoinType, Result};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::conjunction_opt;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::joins::{HashJoinExec, HashJoinExecBuilder, NestedLoopJoinExecBuilder, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;
use overspill_planner::{Join, JoinKind, Node as Tree, Plan, Region};

use super::super::Node;
use super::conditions::{Condition, Expression, LeafColumn};
use super::equalities::EqualColumns;
use super::estimates::row_width;
use super::region::{JoinRegion, remaining};

/// The nodes of a region's new order.
pub(super) struct Rebuild<'a> {
    region: &'a JoinRegion,
    leaves: &'a [Node],
    described: &'a Region,
    plan: &'a Plan,
    config: &'a ConfigOptions,
    /// The joins that are built: estimates are in that order.
    built: usize,
}

/// A node, its columns and its estimated rows.
struct Part {
    node: Node,
    columns: Vec<LeafColumn>,
    rows: f64,
}

/// The keys and the filter of a join.
struct On {
    keys: Vec<(PhysicalExprRef, PhysicalExprRef)>,
    filter: Option<JoinFilter>,
}

impl<'a> Rebuild<'a> {
    /// `leaves` have the columns of the region's leaves, and `plan` is an order of what `described` says of it.
    pub fn new(
        region: &'a JoinRegion,
        leaves: &'a [Node],
        described: &'a Region,
        plan: &'a Plan,
        config: &'a ConfigOptions,
    ) -> Self {
        Self { region, leaves, described, plan, config, built: 0 }
    }

    /// The region with the schema that it had; `None` if the new order has another one: the metadata of a schema are those of one of its
    /// inputs.
    pub fn region(mut self, schema: &SchemaRef) -> Result<Option<Node>> {
        let output = &self.region.output;
        let distinct: BTreeSet<LeafColumn> = output.iter().copied().collect();
        let is_distinct = distinct.len() == output.len();
        let order = if is_distinct { output.clone() } else { distinct.iter().copied().collect() };
        let (tree, _) = self.evaluated(&self.plan.root);
        let Part { node, columns, .. } = self.part(&tree, &distinct, Some(&order))?;
        let names_agree =
            node.schema().fields().iter().zip(schema.fields()).all(|(one, other)| one.name() == other.name());
        let node = if is_distinct && names_agree {
            node
        } else {
            let position =
                |wanted| columns.iter().position(|column| *column == wanted).expect("the root has its columns");
            let projected = output.iter().zip(schema.fields()).map(|(column, field)| {
                let column = position(*column);
                let expression: PhysicalExprRef = Arc::new(Column::new(node.schema().field(column).name(), column));
                (expression, field.name().clone())
            });
            Arc::new(ProjectionExec::try_new(projected.collect::<Vec<_>>(), Arc::clone(&node))?)
        };
        Ok((node.schema() == *schema).then_some(node))
    }

    /// A part of the new order without the equalities of inner joins that follow from those below and beside them, and what is equal in each of
    /// its rows.
    fn evaluated(&self, tree: &Tree) -> (Tree, EqualColumns) {
        let Tree::Join(join) = tree else { return (tree.clone(), EqualColumns::default()) };
        let ((left, of_left), (right, of_right)) = (self.evaluated(&join.left), self.evaluated(&join.right));
        let mut equal = remaining(join.kind, of_left, of_right);
        let mut predicates = join.predicates.clone();
        if join.kind == JoinKind::Inner && !join.fixed {
            predicates.retain(|number| {
                self.region.conditions[*number].plain_columns().is_none_or(|columns| equal.add(columns))
            });
        }
        (Tree::Join(Box::new(Join { left, right, predicates, ..Join::clone(join) })), equal)
    }

    /// A part of the new order that has the `wanted` columns, in this order if one is given.
    fn part(&mut self, tree: &Tree, wanted: &BTreeSet<LeafColumn>, order: Option<&[LeafColumn]>) -> Result<Part> {
        let join = match tree {
            Tree::Leaf(leaf) => {
                let (leaf, node) = (*leaf, Arc::clone(&self.leaves[*leaf]));
                let columns = (0..node.schema().fields().len()).map(|column| LeafColumn { leaf, column }).collect();
                return Ok(Part { node, columns, rows: self.described.relations[leaf].rows });
            }
            Tree::Join(join) => join,
        };
        let conditions: Vec<&Condition> =
            join.predicates.iter().map(|number| &self.region.conditions[*number]).collect();
        let mut needed = wanted.clone();
        needed.extend(conditions.iter().flat_map(|condition| condition.used()));
        let of = |side: &Tree| {
            let relations = side.relations();
            needed.iter().copied().filter(|column| relations.contains(column.leaf)).collect::<BTreeSet<_>>()
        };
        let (of_left, of_right) = (of(&join.left), of(&join.right));
        let left = self.part(&join.left, &of_left, None)?;
        let right = self.part(&join.right, &of_right, None)?;
        let on = On::new(&conditions, join, &left, &right)?;
        let rows = self.plan.estimates[self.built].rows;
        self.built += 1;
        let join_type = join_type(join.kind);
        let all = match join_type {
            JoinType::LeftSemi | JoinType::LeftAnti => left.columns.clone(),
            JoinType::RightSemi | JoinType::RightAnti => right.columns.clone(),
            _ => [left.columns.as_slice(), &right.columns].concat(),
        };
        let columns = match order {
            Some(order) => order.to_vec(),
            None => all.iter().copied().filter(|column| wanted.contains(column)).collect(),
        };
        let position = |wanted: &LeafColumn| all.iter().position(|column| column == wanted).expect("a side has it");
        let projection = (columns != all).then(|| columns.iter().map(position).collect::<Vec<_>>());
        let node = if on.keys.is_empty() {
            let builder = NestedLoopJoinExecBuilder::new(left.node, right.node, join_type);
            Arc::new(builder.with_filter(on.filter).with_projection(projection).build()?) as Node
        } else {
            let mode = self.partition_mode(&left);
            let builder = HashJoinExecBuilder::new(left.node, right.node, on.keys, join_type);
            let builder = builder.with_filter(on.filter).with_projection(projection);
            let fixed = join.tag.and_then(|tag| self.region.fixed[tag].downcast_ref::<HashJoinExec>());
            match fixed {
                Some(written) => builder
                    .with_null_equality(written.null_equality())
                    .with_null_aware(written.null_aware)
                    .with_partition_mode(if written.null_aware { PartitionMode::CollectLeft } else { mode }),
                None => builder.with_partition_mode(mode),
            }
            .build_exec()?
        };
        Ok(Part { node, columns, rows })
    }

    /// As `join_selection` chooses, but by the planner's estimates.
    fn partition_mode(&self, build: &Part) -> PartitionMode {
        let optimizer = &self.config.optimizer;
        let partitioned = self.config.execution.target_partitions > 1 && optimizer.repartition_joins;
        let bytes = build.rows * row_width(&build.node.schema());
        if !partitioned || bytes < optimizer.hash_join_single_partition_threshold as f64 {
            PartitionMode::CollectLeft
        } else {
            PartitionMode::Partitioned
        }
    }
}

impl On {
    fn new(conditions: &[&Condition], join: &Join, left: &Part, right: &Part) -> Result<Self> {
        let left_relations = join.left.relations();
        let (left_schema, right_schema) = (left.node.schema(), right.node.schema());
        let (mut keys, mut filters) = (vec![], vec![]);
        for condition in conditions {
            match condition {
                Condition::Equal { left: one, right: other, .. } => {
                    let (one, other) =
                        if one.relations().is_subset(left_relations) { (one, other) } else { (other, one) };
                    keys.push((one.over(&left.columns, &left_schema)?, other.over(&right.columns, &right_schema)?));
                }
                Condition::Filter { filter, .. } => filters.push(filter),
            }
        }
        Ok(Self { keys, filter: joined_filter(&filters, left, right)? })
    }
}

/// The conjunction of filters, over the columns that they use.
fn joined_filter(filters: &[&Expression], left: &Part, right: &Part) -> Result<Option<JoinFilter>> {
    let used: BTreeSet<LeafColumn> = filters.iter().flat_map(|filter| filter.used()).collect();
    let columns: Vec<LeafColumn> = used.into_iter().collect();
    let find = |part: &Part, wanted: &LeafColumn| part.columns.iter().position(|column| column == wanted);
    let places = columns.iter().map(|column| match find(left, column) {
        Some(index) => ColumnIndex { index, side: JoinSide::Left },
        None => {
            let index = find(right, column).expect("a side has the columns of the join's conditions");
            ColumnIndex { index, side: JoinSide::Right }
        }
    });
    let places: Vec<ColumnIndex> = places.collect();
    let (left_schema, right_schema) = (left.node.schema(), right.node.schema());
    let fields = places.iter().map(|place| match place.side {
        JoinSide::Right => Arc::clone(&right_schema.fields()[place.index]),
        JoinSide::Left | JoinSide::None => Arc::clone(&left_schema.fields()[place.index]),
    });
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let filters = filters.iter().map(|filter| filter.over(&columns, &schema)).collect::<Result<Vec<_>>>()?;
    Ok(conjunction_opt(filters).map(|filter| JoinFilter::new(filter, places, schema)))
}

/// What DataFusion calls a kind of join.
fn join_type(kind: JoinKind) -> JoinType {
    match kind {
        JoinKind::Inner => JoinType::Inner,
        JoinKind::LeftOuter => JoinType::Left,
        JoinKind::RightOuter => JoinType::Right,
        JoinKind::FullOuter => JoinType::Full,
        JoinKind::LeftSemi => JoinType::LeftSemi,
        JoinKind::RightSemi => JoinType::RightSemi,
        JoinKind::LeftAnti => JoinType::LeftAnti,
        JoinKind::RightAnti => JoinType::RightAnti,
        JoinKind::LeftMark => JoinType::LeftMark,
        JoinKind::RightMark => JoinType::RightMark,
    }
}
