//! Puts [`MembershipExec`] below joins, aggregates and sorts, where rows are dropped by the keys of a join above these.

mod build_side;
mod descent;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;

use super::Node;
use crate::config::OverspillConfig;
use crate::hybrid_join::HybridJoinExec;
use crate::index_lookup::IndexLookupExec;

use build_side::EarlyKeys;
use descent::{Descent, columns_of};

/// Lets each join drop rows of its probe side by the keys of its build side, as far below as these keys reach; and rows of its
/// build side by the keys of joins on its probe side, whose build sides are then read first.
///
/// Only a join that needs no probe row without a partner does, and only below a node that does some work for each row: the
/// join itself drops rows as well.
#[derive(Debug)]
pub struct MembershipFilters;

impl PhysicalOptimizerRule for MembershipFilters {
    fn optimize(&self, plan: Node, config: &ConfigOptions) -> Result<Node> {
        let overspill = config.extensions.get::<OverspillConfig>();
        if !overspill.is_some_and(|overspill| overspill.enabled && overspill.membership_filters) {
            return Ok(plan);
        }
        let placed = plan.transform_down(|node| {
            let Some(join) = node.downcast_ref::<HybridJoinExec>() else { return Ok(Transformed::no(node)) };
            let beside = EarlyKeys::of(join)?;
            let with_keys = beside.as_ref().and_then(|node| node.downcast_ref::<HybridJoinExec>()).unwrap_or(join);
            let placed = below(with_keys)?.or(beside);
            Ok(placed.map_or_else(|| Transformed::no(node), Transformed::yes))
        });
        placed.data()
    }

    fn name(&self) -> &str {
        "membership_filters"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The join with nodes on its probe side that drop rows; `None` if there is no place for one.
fn below(join: &HybridJoinExec) -> Result<Option<Node>> {
    let is_looked_up = join.left().is::<IndexLookupExec>() || join.right().is::<IndexLookupExec>();
    if is_looked_up || !join.drops_unmatched_probe_rows() {
        return Ok(None);
    }
    let Some(columns) = columns_of(join.on().iter().map(|(_, probe)| probe)) else { return Ok(None) };
    let slot = join.membership().cloned().unwrap_or_default();
    let descent = Descent { slot: &slot, join: join.on_words().into(), early: join.early_builds() };
    match descent.apply(join.right(), &columns, false)? {
        Some(probe) => join.with_membership(slot, probe).map(Some),
        None => Ok(None),
    }
}
