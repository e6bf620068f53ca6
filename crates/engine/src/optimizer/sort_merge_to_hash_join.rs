//! Turns sort-merge joins into hash joins, which then become hybrid joins.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_plan::joins::{HashJoinExecBuilder, PartitionMode, SortMergeJoinExec};

use super::Node;
use crate::config::OverspillConfig;

/// Replaces every [`SortMergeJoinExec`] by a hash join, so that `datafusion.optimizer.prefer_hash_join = false`, the
/// usual remedy for hash joins that outgrow memory, costs no sorts: a hybrid join spills by itself.
///
/// It must run before `join_selection`, which picks the build side and the partition mode, and before
/// `EnsureRequirements` has put sorts below the join.
pub(crate) fn sort_merge_to_hash_join(
    node: &Node,
    config: &ConfigOptions,
    _: &OverspillConfig,
) -> Result<Option<Node>> {
    let Some(join) = node.downcast_ref::<SortMergeJoinExec>() else { return Ok(None) };
    let partitioned = config.execution.target_partitions > 1 && config.optimizer.repartition_joins;
    let mode = if partitioned { PartitionMode::Auto } else { PartitionMode::CollectLeft };
    let (left, right) = (Arc::clone(join.left()), Arc::clone(join.right()));
    HashJoinExecBuilder::new(left, right, join.on().to_vec(), join.join_type())
        .with_filter(join.filter().clone())
        .with_partition_mode(mode)
        .with_null_equality(join.null_equality())
        .build_exec()
        .map(Some)
}
