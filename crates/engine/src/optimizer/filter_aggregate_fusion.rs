//! Replaces aggregates over filters by [`FilterAggregateExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

use super::enabled;
use crate::config::Selection;
use crate::filter_aggregate::FilterAggregateExec;

/// Replaces every aggregate over a filter that [`FilterAggregateExec::try_new`] supports, unless `overspill.selection` is
/// `off`.
///
/// The rule runs after all others: filters have then been pushed into scans as far as possible, projections into filters, and
/// it is known which dynamic filters are used.
pub(crate) fn filter_aggregate_fusion(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    if !enabled(config).is_some_and(|config| config.selection.0 != Some(Selection::Off)) {
        return Ok(plan);
    }
    plan.transform_up(|node| match node.downcast_ref::<AggregateExec>().and_then(FilterAggregateExec::try_new) {
        Some(fused) => Ok(Transformed::yes(Arc::new(fused) as _)),
        None => Ok(Transformed::no(node)),
    })
    .data()
}
