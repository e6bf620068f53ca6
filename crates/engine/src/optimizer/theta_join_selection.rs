//! Replaces DataFusion's nested loop and cross joins by [`ThetaJoinExec`].

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::{JoinType, Result};
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder};

use super::Node;
use crate::config::OverspillConfig;
use crate::theta_join::ThetaJoinExec;

/// Replaces every [`NestedLoopJoinExec`] and [`CrossJoinExec`] that [`ThetaJoinExec::supports`] by a [`ThetaJoinExec`].
///
/// DataFusion's operators compare every pair without yielding, and hold their left input in memory. If memory is short, its
/// nested loop join reads the left input again for each partition, and then returns some of its rows twice.
///
/// The rule runs after `join_selection`, which has put the smaller input to the left, and before the rules that
/// enforce distribution and order.
pub(crate) fn theta_join_selection(node: &Node, _: &ConfigOptions, _: &OverspillConfig) -> Result<Option<Node>> {
    let crossed = node.downcast_ref::<CrossJoinExec>().map(|join| {
        let (left, right) = (Arc::clone(join.left()), Arc::clone(join.right()));
        NestedLoopJoinExecBuilder::new(left, right, JoinType::Inner).build()
    });
    let crossed = crossed.transpose()?;
    match node.downcast_ref::<NestedLoopJoinExec>().or(crossed.as_ref()) {
        Some(join) if ThetaJoinExec::supports(join) => Ok(Some(Arc::new(ThetaJoinExec::try_new(join)?))),
        _ => Ok(None),
    }
}
