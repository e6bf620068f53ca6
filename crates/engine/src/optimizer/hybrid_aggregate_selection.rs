//! Replaces aggregates with groups by [`HybridAggregateExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;

use super::Node;
use crate::config::OverspillConfig;
use crate::hybrid_aggregate::HybridAggregateExec;

/// Replaces every partial aggregate, repartition and final aggregate that [`HybridAggregateExec::try_new`] supports, if
/// `overspill.hybrid_aggregates` is true.
///
/// The rule runs after those that look for aggregates.
pub(crate) fn hybrid_aggregate_selection(
    node: &Node,
    _: &ConfigOptions,
    overspill: &OverspillConfig,
) -> Result<Option<Node>> {
    if !overspill.hybrid_aggregates {
        return Ok(None);
    }
    Ok(HybridAggregateExec::try_new(node)?.map(|aggregate| Arc::new(aggregate) as _))
}
