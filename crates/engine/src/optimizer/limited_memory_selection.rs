//! Replaces sorts and windows with limited memory by [`SpillingSortExec`] and [`CountedWindowExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::sorts::sort::SortExec;

use super::Node;
use super::shared_build::width;
use crate::config::OverspillConfig;
use crate::hybrid_aggregate::HybridAggregateExec;
use crate::planning::PlanningSession;
use crate::sort::SpillingSortExec;
use crate::window::CountedWindowExec;

/// The memory limit divided by this number is the most that DataFusion may hold for the first rows of a sort: it cannot spill
/// them, every partition keeps them, and a node above merges them.
const KEPT_ROWS_SHARE: usize = 64;

/// Replaces every sort and every window in a session with a memory limit. A sort with a `LIMIT` is left alone if DataFusion
/// keeps few of its rows in memory, as such a sort narrows the scans below it.
///
/// A sort above an aggregate or a window is always replaced: these return slices of large batches. DataFusion keeps the large
/// batches, and counts each as a whole for each slice.
pub(crate) fn limited_memory_selection(
    node: &Node,
    config: &ConfigOptions,
    _: &OverspillConfig,
) -> Result<Option<Node>> {
    let Some(limit) = PlanningSession::memory_limit(config) else { return Ok(None) };
    Ok(match node.downcast_ref::<SortExec>() {
        Some(sort) if !keeps_few(sort, limit) => Some(Arc::new(SpillingSortExec::new(sort.clone()))),
        _ => CountedWindowExec::try_new(node).map(|window| Arc::new(window) as _),
    })
}

/// Whether a sort keeps few rows, in batches of their own.
fn keeps_few(sort: &SortExec, limit: usize) -> bool {
    let row: usize = sort.schema().fields().iter().map(|field| width(field.data_type())).sum();
    sort.fetch().is_some_and(|rows| rows.saturating_mul(row) <= limit / KEPT_ROWS_SHARE) && !emits_slices(sort.input())
}

/// Whether a node passes on the output of an aggregate or a window.
fn emits_slices(node: &Arc<dyn ExecutionPlan>) -> bool {
    if node.is::<AggregateExec>() || node.is::<HybridAggregateExec>() || node.is::<CountedWindowExec>() {
        return true;
    }
    matches!(node.children().as_slice(), [input] if emits_slices(input))
}
