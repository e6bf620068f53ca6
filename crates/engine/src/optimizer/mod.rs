//! The physical optimizer rules that insert [`HybridJoinExec`](crate::HybridJoinExec),
//! [`ThetaJoinExec`](crate::ThetaJoinExec), [`AdaptiveFilterExec`](crate::AdaptiveFilterExec), [`FilterAggregateExec`](crate::FilterAggregateExec),
//! [`JoinAggregateExec`](crate::JoinAggregateExec), [`MembershipExec`](crate::MembershipExec), [`HybridAggregateExec`](crate::HybridAggregateExec),
//! [`SpillingSortExec`](crate::SpillingSortExec) and
//! [`CountedWindowExec`](crate::CountedWindowExec) into plans, and [`AdmissionExec`](crate::AdmissionExec) at their roots.

mod adaptive_filters;
mod admission;
mod filter_aggregate_fusion;
mod filter_pushdown;
mod float_statistics;
mod grouping_sets_input;
mod hybrid_aggregate_selection;
mod hybrid_join_selection;
mod index_lookup_selection;
mod index_scan_selection;
mod join_aggregate_fusion;
mod join_order;
mod limited_memory_selection;
mod membership_filters;
mod shared_build;
mod shared_subplans;
mod sort_merge_to_hash_join;
mod theta_join_selection;
mod yielding;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::config::OverspillConfig;

pub(crate) use adaptive_filters::adaptive_filters;
pub(crate) use admission::AdmissionRule;
pub(crate) use filter_aggregate_fusion::filter_aggregate_fusion;
pub(crate) use filter_pushdown::FilterPushdownByName;
pub(crate) use float_statistics::{Unprunable, float_bounds, float_filters};
pub(crate) use grouping_sets_input::grouping_sets_input;
pub(crate) use hybrid_aggregate_selection::hybrid_aggregate_selection;
pub(crate) use hybrid_join_selection::HybridJoinSelection;
pub(crate) use index_lookup_selection::index_lookup_selection;
pub(crate) use index_scan_selection::index_scan_selection;
pub(crate) use join_aggregate_fusion::join_aggregate_fusion;
pub(crate) use join_order::JoinOrderRule;
pub(crate) use limited_memory_selection::limited_memory_selection;
pub(crate) use membership_filters::MembershipFilters;
pub use shared_build::SharedBuild;
pub(crate) use shared_subplans::SharedSubplans;
pub(crate) use sort_merge_to_hash_join::sort_merge_to_hash_join;
pub(crate) use theta_join_selection::theta_join_selection;
pub use yielding::YieldingOperators;

type Node = Arc<dyn ExecutionPlan>;

/// Rewrites a node after its inputs. `None` leaves it as it is.
type RewriteNode = fn(&Node, &ConfigOptions, &OverspillConfig) -> Result<Option<Node>>;

/// A rule that rewrites each node of a plan by itself, from the bottom up. Without Overspill (`overspill.enabled = false`) it
/// never runs.
#[derive(Debug)]
pub(crate) struct EachNode(pub &'static str, pub RewriteNode);

impl PhysicalOptimizerRule for EachNode {
    fn optimize(&self, plan: Node, config: &ConfigOptions) -> Result<Node> {
        let overspill = config.extensions.get::<OverspillConfig>().filter(|overspill| overspill.enabled);
        let Some(overspill) = overspill else { return Ok(plan) };
        let rewritten = plan.transform_up(|node| {
            let rewritten = self.1(&node, config, overspill)?;
            Ok(rewritten.map_or_else(|| Transformed::no(node), Transformed::yes))
        });
        rewritten.data()
    }

    fn name(&self) -> &str {
        self.0
    }

    fn schema_check(&self) -> bool {
        true
    }
}
