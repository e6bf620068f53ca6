//! Turns sort-merge joins into hash joins, which then become hybrid joins.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExecBuilder, PartitionMode, SortMergeJoinExec};

use crate::config::OverspillConfig;

/// Replaces every [`SortMergeJoinExec`] by a hash join, so that `datafusion.optimizer.prefer_hash_join = false`, the
/// usual remedy for hash joins that outgrow memory, costs no sorts: a hybrid join spills by itself.
///
/// It must run before `join_selection`, which picks the build side and the partition mode, and before
/// `EnsureRequirements` has put sorts below the join.
#[derive(Debug, Default)]
pub struct SortMergeToHashJoin {}

impl SortMergeToHashJoin {
    /// The rule; it has no state.
    pub fn new() -> Self {
        Self {}
    }
}

impl PhysicalOptimizerRule for SortMergeToHashJoin {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !config.extensions.get::<OverspillConfig>().is_some_and(|config| config.enabled) {
            return Ok(plan);
        }
        let partitioned = config.execution.target_partitions > 1 && config.optimizer.repartition_joins;
        let mode = if partitioned { PartitionMode::Auto } else { PartitionMode::CollectLeft };
        plan.transform_up(|node| match node.downcast_ref::<SortMergeJoinExec>() {
            Some(join) => HashJoinExecBuilder::new(
                Arc::clone(join.left()),
                Arc::clone(join.right()),
                join.on().to_vec(),
                join.join_type(),
            )
            .with_filter(join.filter().clone())
            .with_partition_mode(mode)
            .with_null_equality(join.null_equality())
            .build_exec()
            .map(Transformed::yes),
            None => Ok(Transformed::no(node)),
        })
        .map(|transformed| transformed.data)
    }

    fn name(&self) -> &str {
        "sort_merge_to_hash_join"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
