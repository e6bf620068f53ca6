//! Replaces aggregates over joins by [`JoinAggregateExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

use crate::config::OverspillConfig;
use crate::join_aggregate::JoinAggregateExec;
use crate::planning::PlanningSession;

/// Replaces every aggregate over a join that [`JoinAggregateExec::try_new`] supports, if a GPU may run the join and
/// `overspill.gpu_aggregates` is true.
///
/// The rule runs after all others: projections have then been pushed into joins.
#[derive(Debug, Default)]
pub struct JoinAggregateFusion {}

impl JoinAggregateFusion {
    /// The rule; it has no state.
    pub fn new() -> Self {
        Self {}
    }
}

impl PhysicalOptimizerRule for JoinAggregateFusion {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let overspill = config.extensions.get::<OverspillConfig>();
        let Some(overspill) = overspill.filter(|config| config.enabled && config.gpu_aggregates) else {
            return Ok(plan);
        };
        let runtime = PlanningSession::runtime(config);
        plan.transform_up(|node| {
            let fused = node.downcast_ref::<AggregateExec>().and_then(JoinAggregateExec::try_new);
            Ok(match fused.filter(|fused| fused.may_use_gpu(overspill, &runtime)) {
                Some(fused) => Transformed::yes(Arc::new(fused) as _),
                None => Transformed::no(node),
            })
        })
        .map(|transformed| transformed.data)
    }

    fn name(&self) -> &str {
        "join_aggregate_fusion"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
