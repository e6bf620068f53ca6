//! Replaces aggregates over filters by [`FilterAggregateExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_plan::aggregates::AggregateExec;

use super::Node;
use crate::config::{OverspillConfig, Selection};
use crate::filter_aggregate::FilterAggregateExec;

/// Replaces every aggregate over a filter that [`FilterAggregateExec::try_new`] supports, unless `overspill.selection` is
/// `off`.
///
/// The rule runs after all others: filters have then been pushed into scans as far as possible, projections into filters, and
/// it is known which dynamic filters are used.
pub(crate) fn filter_aggregate_fusion(
    node: &Node,
    _: &ConfigOptions,
    overspill: &OverspillConfig,
) -> Result<Option<Node>> {
    if overspill.selection.0 == Some(Selection::Off) {
        return Ok(None);
    }
    let fused = node.downcast_ref::<AggregateExec>().and_then(FilterAggregateExec::try_new);
    Ok(fused.map(|fused| Arc::new(fused) as _))
}
