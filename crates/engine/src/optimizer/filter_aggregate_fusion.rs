//! Replaces aggregates over filters by [`FilterAggregateExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_plan::aggregates::AggregateExec;

use super::{Node, NodeRule};
use crate::config::{OverspillConfig, Selection};
use crate::filter_aggregate::FilterAggregateExec;

/// Replaces every aggregate over a filter that [`FilterAggregateExec::try_new`] supports, unless `overspill.selection` is
/// `off`.
///
/// The rule runs after all others: filters have then been pushed into scans as far as possible, projections into filters, and
/// it is known which dynamic filters are used.
#[derive(Debug)]
pub struct FilterAggregateFusion;

impl NodeRule for FilterAggregateFusion {
    const NAME: &str = "filter_aggregate_fusion";

    fn applies(config: &OverspillConfig) -> bool {
        config.selection.0 != Some(Selection::Off)
    }

    fn rewrite(&self, node: &Node, _: &ConfigOptions) -> Result<Option<Node>> {
        let fused = node.downcast_ref::<AggregateExec>().and_then(FilterAggregateExec::try_new);
        Ok(fused.map(|fused| Arc::new(fused) as _))
    }
}
