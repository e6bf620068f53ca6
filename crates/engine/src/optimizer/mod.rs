//! The physical optimizer rules that insert [`HybridJoinExec`](crate::HybridJoinExec),
//! [`ThetaJoinExec`](crate::ThetaJoinExec), [`FilterAggregateExec`](crate::FilterAggregateExec),
//! [`JoinAggregateExec`](crate::JoinAggregateExec), [`SpillingSortExec`](crate::SpillingSortExec) and
//! [`CountedWindowExec`](crate::CountedWindowExec) into plans.

mod filter_aggregate_fusion;
mod float_statistics;
mod grouping_sets_input;
mod hybrid_join_selection;
mod join_aggregate_fusion;
mod limited_memory_selection;
mod shared_build;
mod sort_merge_to_hash_join;
mod theta_join_selection;
mod yielding;

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::config::OverspillConfig;

pub use filter_aggregate_fusion::FilterAggregateFusion;
pub use float_statistics::{FloatBounds, FloatFilters};
pub use grouping_sets_input::GroupingSetsInput;
pub use hybrid_join_selection::HybridJoinSelection;
pub use join_aggregate_fusion::JoinAggregateFusion;
pub use limited_memory_selection::LimitedMemorySelection;
pub use shared_build::SharedBuild;
pub use sort_merge_to_hash_join::SortMergeToHashJoin;
pub use theta_join_selection::ThetaJoinSelection;
pub use yielding::YieldingOperators;

type Node = Arc<dyn ExecutionPlan>;

/// A change of single nodes of a plan.
pub trait NodeRule: Debug + 'static {
    /// The name of the rule.
    const NAME: &str;

    /// Whether the settings want the rule. Without Overspill (`overspill.enabled = false`) it never runs.
    fn applies(_config: &OverspillConfig) -> bool {
        true
    }

    /// Rewrites a node after its inputs. `None` leaves it as it is.
    ///
    /// # Errors
    /// Fails if the plan is inconsistent.
    fn rewrite(&self, node: &Node, config: &ConfigOptions) -> Result<Option<Node>>;
}

/// Applies a [`NodeRule`] to each node of a plan, from the bottom up.
#[derive(Debug)]
pub struct EachNode<R>(pub R);

impl<R: NodeRule> PhysicalOptimizerRule for EachNode<R> {
    fn optimize(&self, plan: Node, config: &ConfigOptions) -> Result<Node> {
        let overspill = config.extensions.get::<OverspillConfig>();
        if !overspill.is_some_and(|overspill| overspill.enabled && R::applies(overspill)) {
            return Ok(plan);
        }
        let rewritten = plan.transform_up(|node| {
            let rewritten = self.0.rewrite(&node, config)?;
            Ok(rewritten.map_or_else(|| Transformed::no(node), Transformed::yes))
        });
        rewritten.data()
    }

    fn name(&self) -> &str {
        R::NAME
    }

    fn schema_check(&self) -> bool {
        true
    }
}
