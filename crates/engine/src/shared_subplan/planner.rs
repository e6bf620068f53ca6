//! Plans queries whose equal parts run once.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::display::{PlanType, ToStringifiedPlan};
use datafusion::common::format::ExplainFormat;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};

use super::equal::Sharing;
use super::exec::SharedSubplanExec;
use super::node::SharedSubplan;
use super::subplan::Subplan;
use crate::config::OverspillConfig;
use crate::mark_join::MarkJoinPlanner;

/// Rules for whole queries, which do not run for a part.
const FOR_WHOLE_QUERIES: [&str; 2] = ["shared_subplans", "admission"];

/// Plans the nodes that stand for shared parts.
struct SharedSubplanPlanner;

#[async_trait]
impl ExtensionPlanner for SharedSubplanPlanner {
    async fn plan_extension(
        &self,
        _planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        _physical_inputs: &[Arc<dyn ExecutionPlan>],
        _session: &dyn Session,
        _context: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<SharedSubplan>() else { return Ok(None) };
        match node.subplan() {
            Some(subplan) => Ok(Some(Arc::new(SharedSubplanExec::new(subplan)))),
            None => internal_err!("a reader is planned before the subplan that it shares"),
        }
    }
}

/// Plans a query whose equal parts are planned once, as DataFusion does. `None` if it has no such parts, or they should not be
/// shared.
///
/// # Errors
/// Those of the planner.
pub(crate) async fn plan_shared(query: &LogicalPlan, state: &SessionState) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if !may_share(query, state) {
        return Ok(None);
    }
    let sharing = Sharing::of(query)?;
    if sharing.subplans.is_empty() {
        return Ok(None);
    }
    let planner = DefaultPhysicalPlanner::with_extension_planners(vec![
        Arc::new(MarkJoinPlanner::new()),
        Arc::new(SharedSubplanPlanner),
    ]);
    let rules = state.physical_optimizers().iter().filter(|rule| !FOR_WHOLE_QUERIES.contains(&rule.name()));
    let rules = rules.map(Arc::clone).collect();
    let within = SessionStateBuilder::new_from_existing(state.clone()).with_physical_optimizer_rules(rules).build();
    // Parts come before those that they contain.
    for (slot, part) in sharing.subplans.iter().rev() {
        let input = match planner.create_physical_plan(part, &within).await {
            // An explanation says why there is no plan.
            Err(_) if matches!(query, LogicalPlan::Explain(_)) => return Ok(None),
            input => input?,
        };
        if input.boundedness().is_unbounded() {
            return Ok(None);
        }
        slot.subplan.get_or_init(|| Subplan::new(slot.id, input));
    }
    let planned = planner.create_physical_plan(&sharing.query, state).await?;
    Ok(Some(match query {
        LogicalPlan::Explain(explain) => explaining(planned, &explain.plan),
        _ => planned,
    }))
}

fn may_share(query: &LogicalPlan, state: &SessionState) -> bool {
    let settings = state.config_options().extensions.get::<OverspillConfig>();
    let is_on = settings.is_some_and(|settings| settings.enabled && settings.shared_subplans);
    // Rows that readers have yet to pass must have a place.
    let runtime = state.runtime_env();
    let is_limited = !matches!(runtime.memory_pool.memory_limit(), MemoryLimit::Infinite);
    let has_place = !is_limited || runtime.disk_manager.tmp_files_enabled();
    let is_planned = match query {
        LogicalPlan::Explain(explain) => {
            matches!(explain.explain_format, ExplainFormat::Indent | ExplainFormat::Tree)
                && explain.logical_optimization_succeeded
        }
        _ => true,
    };
    is_on && has_place && is_planned
}

/// The explanation of a query, with the logical plan as the optimizer left it: that is where the shared parts can be read.
fn explaining(planned: Arc<dyn ExecutionPlan>, query: &LogicalPlan) -> Arc<dyn ExecutionPlan> {
    let Some(explaining) = planned.downcast_ref::<ExplainExec>() else { return planned };
    let plans = explaining.stringified_plans().iter().map(|plan| match plan.plan_type {
        PlanType::FinalLogicalPlan => query.to_stringified(PlanType::FinalLogicalPlan),
        _ => plan.clone(),
    });
    Arc::new(ExplainExec::new(planned.schema(), plans.collect(), explaining.verbose()))
}
