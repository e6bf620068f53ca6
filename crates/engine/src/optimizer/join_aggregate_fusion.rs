//! Replaces aggregates over joins by [`JoinAggregateExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

use super::enabled;
use crate::join_aggregate::JoinAggregateExec;
use crate::planning::PlanningSession;

/// Replaces every aggregate over a join that [`JoinAggregateExec::try_new`] supports, if a GPU may run the join and
/// `overspill.gpu_aggregates` is true.
///
/// The rule runs after all others: projections have then been pushed into joins.
pub(crate) fn join_aggregate_fusion(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(overspill) = enabled(config).filter(|config| config.gpu_aggregates) else {
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
    .data()
}
