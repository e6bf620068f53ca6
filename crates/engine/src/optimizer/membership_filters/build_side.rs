//! Restricts the build side of a join by the keys of joins on its probe side.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::joins::PartitionMode;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use overspill_join::spec::ColumnSource;

use super::super::Node;
use super::descent::{Descent, columns_of, only_input};
use crate::hybrid_join::{HybridJoinExec, keeps_probe_columns};
use crate::index_lookup::IndexLookupExec;
use crate::membership_filter::MembershipSlot;

/// How many times more rows a build side must be estimated to have than one that is read before it to restrict it.
const TIMES_SMALLER: f64 = 4.0;

/// The build side of a join, and joins on its probe side whose build sides are read first because their keys restrict it.
///
/// Where the probe side consists of rows with keys of another join, build rows with other keys have no partner.
pub(super) struct EarlyKeys {
    build: Node,
    rows: f64,
    slots: Vec<Arc<MembershipSlot>>,
}

impl EarlyKeys {
    /// The join with a smaller build side; `None` if no join of the probe side makes it smaller.
    pub fn of(join: &HybridJoinExec) -> Result<Option<Node>> {
        let is_looked_up = join.left().is::<IndexLookupExec>() || join.right().is::<IndexLookupExec>();
        if is_looked_up || join.partition_mode() != PartitionMode::CollectLeft || join.keeps_unmatched_build_rows() {
            return Ok(None);
        }
        let Some(rows) = build_rows(join)? else { return Ok(None) };
        let mut early = Self { build: Arc::clone(join.left()), rows, slots: vec![] };
        match early.on_probe(join.right(), &join.equal_columns())? {
            Some(probe) => join.with_early_builds(early.slots, early.build, probe).map(Some),
            None => Ok(None),
        }
    }

    /// The node with joins that publish their keys. `pairs` are columns of the build side, and the columns of the node that
    /// they must be equal to. `None` if no key of a join restricts the build side.
    fn on_probe(&mut self, node: &Node, pairs: &[(usize, usize)]) -> Result<Option<Node>> {
        if pairs.is_empty() || node.fetch().is_some() {
            return Ok(None);
        }
        let Some(join) = node.downcast_ref::<HybridJoinExec>() else {
            let below = |(build, column): &(usize, usize)| Some((*build, only_input(node, &[*column])?[0]));
            let pairs: Vec<_> = pairs.iter().filter_map(below).collect();
            let [input] = node.children()[..] else { return Ok(None) };
            let input = self.on_probe(input, &pairs)?;
            return input.map(|input| replace_children_if_necessary(Arc::clone(node), vec![input])).transpose();
        };
        let (output, equal) = (join.output_columns(), join.equal_columns());
        let is_inner = join.join_type() == datafusion::common::JoinType::Inner;
        let below = |(build, column): &(usize, usize)| match output[*column] {
            ColumnSource::Probe(column) if keeps_probe_columns(join.join_type()) => Some((*build, column)),
            ColumnSource::Build(column) if is_inner => {
                equal.iter().find(|(of_build, _)| *of_build == column).map(|(_, probe)| (*build, *probe))
            }
            _ => None,
        };
        let pairs: Vec<_> = pairs.iter().filter_map(below).collect();
        let slot = self.restrict_by(join, &pairs)?;
        let probe = self.on_probe(join.right(), &pairs)?;
        match (slot, probe) {
            (None, None) => Ok(None),
            (Some(slot), probe) => {
                join.with_membership(slot, probe.unwrap_or_else(|| Arc::clone(join.right()))).map(Some)
            }
            (None, Some(probe)) => {
                replace_children_if_necessary(Arc::clone(node), vec![Arc::clone(join.left()), probe]).map(Some)
            }
        }
    }

    /// Restricts the build side by the keys of a join, if that is worthwhile. Returns where the join publishes them.
    fn restrict_by(&mut self, join: &HybridJoinExec, pairs: &[(usize, usize)]) -> Result<Option<Arc<MembershipSlot>>> {
        let is_looked_up = join.left().is::<IndexLookupExec>() || join.right().is::<IndexLookupExec>();
        if is_looked_up || join.partition_mode() != PartitionMode::CollectLeft || !join.drops_unmatched_probe_rows() {
            return Ok(None);
        }
        let Some(keys) = columns_of(join.on().iter().map(|(_, probe)| probe)) else { return Ok(None) };
        let (build, probe) = (self.build.schema(), join.right().schema());
        let of_build = |key: &usize| {
            let same_type =
                |build_column: usize| build.field(build_column).data_type() == probe.field(*key).data_type();
            pairs.iter().find(|(column, of_probe)| of_probe == key && same_type(*column)).map(|(column, _)| *column)
        };
        let Some(columns) = keys.iter().map(of_build).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let is_small = build_rows(join)?.is_some_and(|rows| rows * TIMES_SMALLER <= self.rows);
        if !is_small {
            return Ok(None);
        }
        let slot = join.membership().cloned().unwrap_or_default();
        let descent = Descent { slot: &slot, join: join.on_words().into(), early: &[] };
        let Some(build) = descent.apply(&self.build, &columns, true)? else { return Ok(None) };
        self.build = build;
        self.slots.push(Arc::clone(&slot));
        Ok(Some(slot))
    }
}

/// The estimated rows of a join's build side; `None` if nothing is known of it.
fn build_rows(join: &HybridJoinExec) -> Result<Option<f64>> {
    if let Some(estimate) = join.estimate() {
        return Ok(Some(estimate.build));
    }
    let statistics = StatisticsContext::new().compute(join.left().as_ref(), &StatisticsArgs::new())?;
    Ok(statistics.num_rows.get_value().map(|rows| *rows as f64))
}
