//! The way of a key from a join down to the scans.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::Partitioning;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use overspill_join::spec::ColumnSource;

use super::super::Node;
use crate::hybrid_join::{HybridJoinExec, keeps_build_columns, keeps_probe_columns};
use crate::index_lookup::IndexLookupExec;
use crate::membership_filter::{KeyFilter, MembershipExec, MembershipSlot};

/// The columns that these expressions are; `None` if one is more than a column.
///
/// An expression is not evaluated further below: it may fail on rows that a filter above drops.
pub(super) fn columns_of<'a>(expressions: impl Iterator<Item = &'a PhysicalExprRef>) -> Option<Vec<usize>> {
    expressions.map(|expression| Some(expression.downcast_ref::<Column>()?.index())).collect()
}

/// Puts a [`MembershipExec`] wherever the key of a join comes from.
///
/// A node may be passed if its output rows with a key depend only on its input rows with that key, so that rows with other keys
/// can be missing from its input.
pub(super) struct Descent<'a> {
    pub slot: &'a Arc<MembershipSlot>,
    pub join: Arc<str>,
    /// Where joins publish their keys whose build sides are read before these keys are known.
    pub early: &'a [Arc<MembershipSlot>],
}

impl Descent<'_> {
    /// The node, without most rows whose `columns` are no key of the join. `None` if that saves nothing. `saves` says whether a
    /// node above does some work for each row.
    pub fn apply(&self, node: &Node, columns: &[usize], saves: bool) -> Result<Option<Node>> {
        let mut inputs = inputs(node, columns);
        inputs.retain(|(child, _)| *child == 1 || !self.is_read_before(node));
        if inputs.is_empty() {
            // Where rows are tested anyway, one more test saves the others work, if fewer rows pass it.
            let is_worthwhile = saves || node.is::<MembershipExec>();
            let filter =
                || KeyFilter { columns: columns.to_vec(), join: Arc::clone(&self.join), slot: Arc::clone(self.slot) };
            return Ok(is_worthwhile.then(|| Arc::new(MembershipExec::over(node, filter())) as _));
        }
        let saves = saves || works_on_rows(node);
        let mut children: Vec<Node> = node.children().into_iter().map(Arc::clone).collect();
        let mut is_placed = false;
        for (child, columns) in inputs {
            if let Some(placed) = self.apply(&children[child], &columns, saves)? {
                children[child] = placed;
                is_placed = true;
            }
        }
        if is_placed { replace_children_if_necessary(Arc::clone(node), children).map(Some) } else { Ok(None) }
    }

    /// Whether the node is a join whose build side is read before the keys are known.
    fn is_read_before(&self, node: &Node) -> bool {
        let own = node.downcast_ref::<HybridJoinExec>().and_then(HybridJoinExec::membership);
        own.is_some_and(|own| self.early.iter().any(|early| Arc::ptr_eq(own, early)))
    }
}

/// Whether a node does more for each row than to copy it.
fn works_on_rows(node: &Node) -> bool {
    let shuffles = |repartition: &RepartitionExec| matches!(repartition.partitioning(), Partitioning::Hash(..));
    node.is::<HybridJoinExec>()
        || node.is::<AggregateExec>()
        || node.is::<SortExec>()
        || node.downcast_ref::<RepartitionExec>().is_some_and(shuffles)
}

/// The inputs of a node that need only rows with the same key as its output, with the key's columns there. Empty if there are
/// none.
fn inputs(node: &Node, columns: &[usize]) -> Vec<(usize, Vec<usize>)> {
    if node.fetch().is_some() {
        // Which rows are among the first depends on all others.
        return vec![];
    }
    if let Some(join) = node.downcast_ref::<HybridJoinExec>() {
        return sides(join, columns);
    }
    if node.is::<UnionExec>() || node.is::<InterleaveExec>() {
        return (0..node.children().len()).map(|child| (child, columns.to_vec())).collect();
    }
    only_input(node, columns).map(|columns| (0, columns)).into_iter().collect()
}

/// The columns of a key in the input of a node with one input.
pub(super) fn only_input(node: &Node, columns: &[usize]) -> Option<Vec<usize>> {
    let keeps_columns = node.is::<RepartitionExec>()
        || node.is::<CoalescePartitionsExec>()
        || node.is::<SortExec>()
        || node.is::<SortPreservingMergeExec>();
    if keeps_columns {
        return Some(columns.to_vec());
    }
    if let Some(filter) = node.downcast_ref::<FilterExec>() {
        return Some(match filter.projection() {
            Some(projection) => columns.iter().map(|column| projection[*column]).collect(),
            None => columns.to_vec(),
        });
    }
    if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
        return columns_of(columns.iter().map(|column| &projection.expr()[*column].expr));
    }
    let aggregate = node.downcast_ref::<AggregateExec>()?;
    let groups = aggregate.group_expr();
    if !groups.is_single() || groups.has_grouping_set() || aggregate.limit_options().is_some() {
        return None;
    }
    let group = |column: &usize| groups.expr().get(*column).map(|(group, _)| group);
    columns_of(columns.iter().map(group).collect::<Option<Vec<_>>>()?.into_iter())
}

/// The sides of a join that need only rows with these keys, and the keys' columns there: the side that the columns are from, and
/// the other one if they are equal to its columns.
fn sides(join: &HybridJoinExec, columns: &[usize]) -> Vec<(usize, Vec<usize>)> {
    let (output, equal) = (join.output_columns(), join.equal_columns());
    let on_build = |source: ColumnSource| match source {
        ColumnSource::Build(column) if keeps_build_columns(join.join_type()) => Some(column),
        ColumnSource::Probe(column) if keeps_probe_columns(join.join_type()) => {
            equal.iter().find(|(_, probe)| *probe == column).map(|(build, _)| *build)
        }
        _ => None,
    };
    let on_probe = |source: ColumnSource| match source {
        ColumnSource::Probe(column) if keeps_probe_columns(join.join_type()) => Some(column),
        ColumnSource::Build(column) if keeps_build_columns(join.join_type()) => {
            equal.iter().find(|(build, _)| *build == column).map(|(_, probe)| *probe)
        }
        _ => None,
    };
    let mut sides = vec![];
    let sources = || columns.iter().map(|column| output[*column]);
    if let Some(columns) =
        sources().map(on_build).collect::<Option<Vec<_>>>().filter(|_| !join.left().is::<IndexLookupExec>())
    {
        sides.push((0, columns));
    }
    if let Some(columns) =
        sources().map(on_probe).collect::<Option<Vec<_>>>().filter(|_| !join.right().is::<IndexLookupExec>())
    {
        sides.push((1, columns));
    }
    sides
}
