//! Replaces filters by [`AdaptiveFilterExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_plan::filter::FilterExec;

use super::Node;
use crate::adaptive_filter::AdaptiveFilterExec;
use crate::config::{FilterOrder, OverspillConfig};

/// Replaces every filter with conjuncts that may change places, unless `overspill.filter_order` is `as_written`.
///
/// The rule runs after those that look for filters.
pub(crate) fn adaptive_filters(node: &Node, _: &ConfigOptions, overspill: &OverspillConfig) -> Result<Option<Node>> {
    if overspill.filter_order.0 == Some(FilterOrder::AsWritten) {
        return Ok(None);
    }
    let Some(filter) = node.downcast_ref::<FilterExec>() else { return Ok(None) };
    Ok(AdaptiveFilterExec::try_new(filter)?.map(|filter| Arc::new(filter) as _))
}
