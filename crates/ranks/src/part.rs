//! How a rank runs its part of a query.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::{SessionState, TaskContext};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::prelude::SessionConfig;
use overspill::travel::with_session;
use overspill_distributed::settings::with_settings;
use overspill_exchange::{Exchanged, Side};

use crate::exec::{RankBroadcastExec, RankGatherExec, RankShuffleExec, count_exchanged};
use crate::job::RankJob;

/// Rules for a plan within one process, which each rank applies to its part. Those that read indexes are not among them.
const WITHIN_A_RANK: [&str; 5] = [
    "filter_aggregate_fusion",
    "join_aggregate_fusion",
    "adaptive_filters",
    "limited_memory_selection",
    "yielding_operators",
];

/// A part with what only this rank decides.
pub fn within_rank(
    mut plan: Arc<dyn ExecutionPlan>,
    state: &SessionState,
    options: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    // Among them is the memory limit.
    let options = with_session(options, state);
    for rule in state.physical_optimizers().iter().filter(|rule| WITHIN_A_RANK.contains(&rule.name())) {
        plan = rule.optimize(plan, &options)?;
    }
    Ok(plan)
}

/// A context in which exchanges find their job.
pub fn in_job(context: &TaskContext, config: SessionConfig, job: &Arc<RankJob>) -> Arc<TaskContext> {
    with_settings(context, config.with_extension(Arc::clone(job)))
}

/// An exchange of a plan: its number and what it counts.
pub fn exchange(plan: &Arc<dyn ExecutionPlan>) -> Option<(u64, &ExecutionPlanMetricsSet)> {
    if let Some(shuffle) = plan.downcast_ref::<RankShuffleExec>() {
        return Some((shuffle.way().number, shuffle.counters()));
    }
    if let Some(broadcast) = plan.downcast_ref::<RankBroadcastExec>() {
        return Some((broadcast.way().number, broadcast.counters()));
    }
    let gather = plan.downcast_ref::<RankGatherExec>()?;
    Some((gather.way().number, gather.counters()))
}

/// Opens the right sides of joins whose heavy keys are found out: the left sides wait for samples of them, before an operator asks for
/// their rows.
pub fn open_right_sides(plan: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>) -> Result<()> {
    plan.apply(|node| {
        if let Some(shuffle) = node.downcast_ref::<RankShuffleExec>()
            && let Some((_, Side::Right)) = shuffle.heavy_keys()
        {
            shuffle.open(context)?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// Opens and drops what no operator has opened, after the rows of a plan have ended: other ranks wait for rows of it.
pub fn close_exchanges(plan: &Arc<dyn ExecutionPlan>, job: &RankJob, context: &Arc<TaskContext>) -> Result<()> {
    job.drop_ready();
    plan.apply(|node| {
        let Some((number, _)) = exchange(node) else { return Ok(TreeNodeRecursion::Continue) };
        for lane in 0..node.output_partitioning().partition_count() {
            if !job.is_open(number, lane) {
                drop(node.execute(lane, Arc::clone(context))?);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    // To open one lane of a shuffle is to open all.
    job.drop_ready();
    Ok(())
}

/// What each exchange of a job has counted here.
pub fn exchanged(job: &RankJob) -> BTreeMap<u64, Exchanged> {
    let of_all = job.metrics().into_iter().map(|(number, metrics)| {
        (number, metrics.iter().fold(Exchanged::default(), |sum, metrics| sum + metrics.exchanged()))
    });
    of_all.collect()
}

/// Shows what all ranks have counted in the exchanges of a plan, and how many keys of its joins were heavy.
pub fn show_exchanged(
    plan: &Arc<dyn ExecutionPlan>,
    exchanged: &BTreeMap<u64, Exchanged>,
    heavy_keys: &BTreeMap<u64, usize>,
) -> Result<()> {
    plan.apply(|node| {
        let Some((number, metrics)) = exchange(node) else { return Ok(TreeNodeRecursion::Continue) };
        if let Some(exchanged) = exchanged.get(&number) {
            count_exchanged(metrics, exchanged);
        }
        let join = node.downcast_ref::<RankShuffleExec>().and_then(RankShuffleExec::heavy_keys);
        if let Some((join, _)) = join
            && let Some(found) = heavy_keys.get(&join.number)
        {
            MetricBuilder::new(metrics).global_counter("heavy_keys").add(*found);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}
