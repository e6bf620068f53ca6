//! Puts [`SpillingSortExec`] and [`CountedWindowExec`] in the place of sorts and windows whose memory is limited.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::sorts::sort::SortExec;

use super::shared_build::width;
use crate::config::OverspillConfig;
use crate::sort::SpillingSortExec;
use crate::window::CountedWindowExec;

/// DataFusion keeps the first rows of a sort in memory up to this part of the limit, as a divisor: it cannot spill them,
/// every partition keeps them, and a node above merges them.
const KEPT_ROWS_SHARE: usize = 64;

/// Replaces every sort and every window in a session with a memory limit, but sorts with a `LIMIT` for which DataFusion
/// keeps few rows in memory, while they narrow the scans below them.
///
/// Above an aggregate or a window they do not: these put out slices of large batches, which DataFusion keeps, and counts
/// as a whole for each slice.
#[derive(Debug)]
pub struct LimitedMemorySelection {
    pool: Option<Arc<dyn MemoryPool>>,
}

impl LimitedMemorySelection {
    /// A rule for sessions that take their memory from a pool, if it is known yet.
    pub fn new(pool: Option<Arc<dyn MemoryPool>>) -> Self {
        Self { pool }
    }

    fn limit(&self) -> Option<usize> {
        match self.pool.as_ref()?.memory_limit() {
            MemoryLimit::Finite(limit) => Some(limit),
            MemoryLimit::Infinite | MemoryLimit::Unknown => None,
        }
    }
}

/// Whether the rows that a sort keeps are few, and in batches of their own.
fn keeps_few(sort: &SortExec, limit: usize) -> bool {
    let row: usize = sort.schema().fields().iter().map(|field| width(field.data_type())).sum();
    sort.fetch().is_some_and(|rows| rows.saturating_mul(row) <= limit / KEPT_ROWS_SHARE)
        && !puts_slices_out(sort.input())
}

/// Whether a node hands on what an aggregate or a window puts out.
fn puts_slices_out(node: &Arc<dyn ExecutionPlan>) -> bool {
    if node.is::<AggregateExec>() || node.is::<CountedWindowExec>() {
        return true;
    }
    matches!(node.children().as_slice(), [input] if puts_slices_out(input))
}

impl PhysicalOptimizerRule for LimitedMemorySelection {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let enabled = config.extensions.get::<OverspillConfig>().is_some_and(|config| config.enabled);
        let Some(limit) = self.limit().filter(|_| enabled) else { return Ok(plan) };
        plan.transform_up(|node| match node.downcast_ref::<SortExec>() {
            Some(sort) if !keeps_few(sort, limit) => {
                Ok(Transformed::yes(Arc::new(SpillingSortExec::new(sort.clone())) as _))
            }
            _ => Ok(match CountedWindowExec::try_new(&node) {
                Some(window) => Transformed::yes(Arc::new(window) as _),
                None => Transformed::no(node),
            }),
        })
        .map(|transformed| transformed.data)
    }

    fn name(&self) -> &str {
        "limited_memory_selection"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
