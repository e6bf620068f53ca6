//! How a query for several processes is planned.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::joins::{NestedLoopJoinExec, PartitionMode};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use overspill::write_aside::WriteAsideExec;
use overspill::{HybridJoinExec, OverspillConfig, ThetaJoinExec};

use crate::gather::GatherExec;

/// Rules for one process: their nodes share state among streams, read files of indexes, or measure while they run. Sorts and
/// windows are replaced in each process.
const FOR_ONE_PROCESS: [&str; 10] = [
    "shared_build",
    "index_scan_selection",
    "index_lookup_selection",
    "filter_aggregate_fusion",
    "join_aggregate_fusion",
    "membership_filters",
    "adaptive_filters",
    "hybrid_aggregate_selection",
    "limited_memory_selection",
    "yielding_operators",
];

/// The rule after which joins are those of Overspill.
const LAST_JOIN_RULE: &str = "theta_join_selection";

/// Whether a query reads tables; if not, there is nothing to divide.
pub fn scans_tables(plan: &LogicalPlan) -> bool {
    let mut scans = false;
    let visited = plan.apply_with_subqueries(|node| {
        scans |= matches!(node, LogicalPlan::TableScan(_));
        Ok(if scans { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    visited.is_ok() && scans
}

/// Plans a query by the planner that a session had, or by DataFusion's if it had none.
///
/// # Errors
/// Those of the planner.
pub async fn plan_here(
    planner: Option<&(dyn QueryPlanner + Send + Sync)>,
    plan: &LogicalPlan,
    session: &dyn Session,
) -> Result<Arc<dyn ExecutionPlan>> {
    match planner {
        Some(planner) => planner.create_physical_plan(plan, session).await,
        None => DefaultPhysicalPlanner::default().create_physical_plan(plan, session).await,
    }
}

/// A copy of a session that plans for several processes, with this number of partitions among all of them.
pub fn for_processes(state: &SessionState, partitions: usize) -> SessionState {
    let mut rules = Vec::new();
    for rule in state.physical_optimizers() {
        if !FOR_ONE_PROCESS.contains(&rule.name()) {
            rules.push(Arc::clone(rule));
        }
        if rule.name() == LAST_JOIN_RULE {
            rules.push(Arc::new(GatherProbes) as _);
        }
    }
    let mut state = SessionStateBuilder::new_from_existing(state.clone()).with_physical_optimizer_rules(rules).build();
    let options = state.config_mut().options_mut();
    let execution = &mut options.execution;
    execution.target_partitions = partitions;
    // Messages hold the buffers of views whole, also for a few of their rows.
    execution.parquet.schema_force_view_types = false;
    let optimizer = &mut options.optimizer;
    // It would send rows to other processes for no more than their number. Ballista takes it out of plans, with the number of
    // partitions that nodes above rely on.
    optimizer.enable_round_robin_repartition = false;
    // A shuffle does not keep the order of rows.
    optimizer.prefer_existing_sort = false;
    optimizer.repartition_joins = true;
    optimizer.prefer_hash_join = true;
    // A collected build side would be read by every process. Only joins that must have one do.
    optimizer.hash_join_single_partition_threshold = 0;
    optimizer.hash_join_single_partition_threshold_rows = 0;
    // Filters that a join computes while it runs do not reach the scans of other processes.
    optimizer.enable_dynamic_filter_pushdown = false;
    optimizer.enable_join_dynamic_filter_pushdown = false;
    optimizer.enable_topk_dynamic_filter_pushdown = false;
    optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    // Their readers share what they keep in one process.
    if let Some(overspill) = options.extensions.get_mut::<OverspillConfig>() {
        overspill.shared_subplans = false;
    }
    state
}

/// Brings the probe side of joins into one process whose streams must know of each other's rows: those with a collected build side
/// that return its rows, or that distinguish a null from no match.
#[derive(Debug)]
struct GatherProbes;

impl PhysicalOptimizerRule for GatherProbes {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            if !needs_all_probe_rows(&node) {
                return Ok(Transformed::no(node));
            }
            let [build, probe] = node.children()[..] else { return Ok(Transformed::no(node)) };
            let inputs = vec![Arc::clone(build), Arc::new(GatherExec::new(Arc::clone(probe))) as _];
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Arc::clone(&node).replace_children(inputs, options).map(Transformed::yes)
        })
        .data()
    }

    fn name(&self) -> &str {
        "gather_probes"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether a join must see all its probe rows in one process: it returns rows of a build side that its streams share, or distinguishes
/// a null from no match.
pub fn needs_all_probe_rows(node: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(join) = node.downcast_ref::<ThetaJoinExec>() {
        return returns_build_rows(join.join_type());
    }
    if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        return returns_build_rows(*join.join_type());
    }
    let Some(join) = node.downcast_ref::<HybridJoinExec>() else { return false };
    join.partition_mode() == PartitionMode::CollectLeft
        && (returns_build_rows(join.join_type()) || join.planned().null_aware || join.has_null_aware_mark())
}

/// Whether rows of the build side are returned for what no probe row has matched.
fn returns_build_rows(join_type: JoinType) -> bool {
    use JoinType::{Full, Left, LeftAnti, LeftMark, LeftSemi};
    matches!(join_type, Left | Full | LeftSemi | LeftAnti | LeftMark)
}

/// Whether a window function has what DataFusion's messages have no place for. Nothing but its debug text shows that.
pub fn loses_window_properties(node: &Arc<dyn ExecutionPlan>) -> bool {
    let bounded = node.downcast_ref::<BoundedWindowAggExec>().map(BoundedWindowAggExec::window_expr);
    let functions = bounded.or_else(|| node.downcast_ref::<WindowAggExec>().map(WindowAggExec::window_expr));
    functions.into_iter().flatten().any(|function| {
        let shown = format!("{function:?}");
        ["filter: Some(", "ignore_nulls: true", "is_reversed: true"].iter().any(|property| shown.contains(property))
    })
}

/// Whether a node writes rows to files. One of the two is the node around sinks that puts files in place.
pub fn is_sink(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<DataSinkExec>() || plan.is::<WriteAsideExec>()
}
