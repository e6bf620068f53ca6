//! Replaces aggregates over joins by [`JoinAggregateExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::Node;
use crate::config::OverspillConfig;
use crate::join_aggregate::JoinAggregateExec;
use crate::planning::PlanningSession;

/// Replaces every aggregate over a join that [`JoinAggregateExec::try_new`] supports, if a GPU may run the join and
/// `overspill.gpu_aggregates` is true, together with the node above it that gathers its partitions.
///
/// The rule runs after all others: projections have then been pushed into joins.
pub(crate) fn join_aggregate_fusion(
    node: &Node,
    config: &ConfigOptions,
    overspill: &OverspillConfig,
) -> Result<Option<Node>> {
    if !overspill.gpu_aggregates {
        return Ok(None);
    }
    let aggregate = match node.downcast_ref::<CoalescePartitionsExec>() {
        Some(coalesce) if coalesce.fetch().is_none() => Some(coalesce.input()),
        _ => Some(node).filter(|node| node.output_partitioning().partition_count() == 1),
    };
    let fused = aggregate.and_then(|node| JoinAggregateExec::try_new(node.downcast_ref()?));
    let may_use_gpu = |fused: &JoinAggregateExec| fused.may_use_gpu(overspill, &PlanningSession::runtime(config));
    Ok(fused.filter(may_use_gpu).map(|fused| Arc::new(fused) as _))
}
