//! Replaces DataFusion's nested loop and cross joins by [`ThetaJoinExec`].

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinType, Result};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder};

use super::enabled;
use crate::theta_join::ThetaJoinExec;

/// Replaces every [`NestedLoopJoinExec`] and [`CrossJoinExec`] that [`ThetaJoinExec::supports`] by a [`ThetaJoinExec`].
///
/// DataFusion's operators compare every pair without yielding, and hold their left input in memory. If memory is short, its
/// nested loop join reads the left input again for each partition, and then returns some of its rows twice.
///
/// The rule runs after `join_selection`, which has put the smaller input to the left, and before the rules that
/// enforce distribution and order.
pub(crate) fn theta_join_selection(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    if enabled(config).is_none() {
        return Ok(plan);
    }
    plan.transform_up(|node| {
        if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
            return theta_join(join).map(|join| join.map_or_else(|| Transformed::no(node), Transformed::yes));
        }
        let Some(join) = node.downcast_ref::<CrossJoinExec>() else { return Ok(Transformed::no(node)) };
        let (left, right) = (Arc::clone(join.left()), Arc::clone(join.right()));
        let join = NestedLoopJoinExecBuilder::new(left, right, JoinType::Inner).build()?;
        theta_join(&join).map(|join| join.map_or_else(|| Transformed::no(node), Transformed::yes))
    })
    .data()
}

fn theta_join(join: &NestedLoopJoinExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    match ThetaJoinExec::supports(join) {
        true => Ok(Some(Arc::new(ThetaJoinExec::try_new(join)?))),
        false => Ok(None),
    }
}
