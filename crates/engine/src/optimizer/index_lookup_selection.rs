//! Puts [`IndexLookupExec`](crate::IndexLookupExec) below joins with an indexed key.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::{JoinSide, Result};
use datafusion::physical_plan::joins::PartitionMode;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

use super::Node;
use crate::config::{IndexUse, OverspillConfig};
use crate::hybrid_join::HybridJoinExec;

/// Lets a join look the rows of a side up where it has an index for it, unless `overspill.indexes` is `never`. All streams must
/// share one build side, so that one set of keys decides.
///
/// The rule runs after all that move operators and filters: nothing may come between the join and its lookups.
pub(crate) fn index_lookup_selection(
    node: &Node,
    _: &ConfigOptions,
    overspill: &OverspillConfig,
) -> Result<Option<Node>> {
    let Some(join) = node.downcast_ref::<HybridJoinExec>() else { return Ok(None) };
    if overspill.indexes.0 == Some(IndexUse::Never) || join.partition_mode() != PartitionMode::CollectLeft {
        return Ok(None);
    }
    let Some((side, lookup)) = join.index_lookup(&overspill.index_dir) else { return Ok(None) };
    let (left, right) = (Arc::clone(join.left()), Arc::clone(join.right()));
    let other = if side == JoinSide::Left { &right } else { &left };
    // Too many keys are then not collected first.
    let statistics = StatisticsContext::new().compute(other.as_ref(), &StatisticsArgs::new())?;
    let lookup: Node = Arc::new(match statistics.num_rows {
        Precision::Exact(keys) => lookup.for_keys(keys),
        Precision::Inexact(_) | Precision::Absent => lookup,
    });
    let sides = if side == JoinSide::Left { vec![lookup, right] } else { vec![left, lookup] };
    Arc::clone(node).replace_children(sides, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute)).map(Some)
}
