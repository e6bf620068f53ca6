//! Decides which ranks run a query, and plans it for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::display::{PlanType, StringifiedPlan};
use datafusion::common::format::ExplainFormat;
use datafusion::execution::context::QueryPlanner;
use datafusion::execution::memory_pool::MemoryLimit;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{Explain, LogicalPlan};
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::explain::ExplainExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions, displayable};
use overspill::write_aside::WriteAsideExec;
use overspill::{OverspillConfig, ShuffleCompression};
use overspill_distributed::planning::{for_processes, is_sink, plan_here, scans_tables};
use overspill_distributed::settings::travelling;

use crate::distribute::Ranks;
use crate::exec::Way;
use crate::leader::Leader;
use crate::part::within_rank;
use crate::query::RankQueryExec;

/// The most bytes that a rank sends in a round, and the least.
const ROUND: std::ops::RangeInclusive<usize> = 64 << 10..=8 << 20;

/// The part of a rank's memory that an exchange sends in a round.
const SHARE: usize = 128;

/// Files above this size are cut, so that all ranks read them.
const SMALLEST_CUT_FILE: usize = 1 << 20;

/// Plans queries for all ranks where they can run there, and else for this one.
#[derive(Debug)]
pub struct RanksPlanner {
    /// The session's own planner; DataFusion's if there is none.
    pub here: Option<Arc<dyn QueryPlanner + Send + Sync>>,
    pub leader: Arc<Leader>,
}

#[async_trait]
impl QueryPlanner for RanksPlanner {
    async fn create_physical_plan(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        let state = session.as_any().downcast_ref::<SessionState>();
        let Some(state) = state.filter(|state| is_enabled(state) && self.leader.ranks() > 1 && scans_tables(plan))
        else {
            return self.plan_with(plan, session).await;
        };
        let lanes = state.config().target_partitions().max(1);
        let mut for_ranks = for_processes(state, lanes * self.leader.ranks());
        for_ranks.config_mut().options_mut().optimizer.repartition_file_min_size = SMALLEST_CUT_FILE;
        let planned = self.plan_with(plan, &for_ranks).await?;
        let distributed = match plan {
            LogicalPlan::Explain(explain) => {
                let explained = self.plan_with(&explain.plan, &for_ranks).await?;
                self.on_ranks(explained, state, for_ranks.config_options(), lanes, false)?
                    .map(|shown| explaining(&planned, explain, &shown))
            }
            _ => self.on_ranks(planned, state, for_ranks.config_options(), lanes, false)?,
        };
        match distributed {
            Some(planned) => Ok(planned),
            None => self.plan_with(plan, session).await,
        }
    }
}

impl Leader {
    /// Makes the session run queries on all ranks. Call it after [`with_overspill`](overspill::OverspillSessionExt::with_overspill), and after all
    /// other calls that add rules.
    #[must_use]
    pub fn extend(self: &Arc<Self>, mut builder: SessionStateBuilder) -> SessionStateBuilder {
        let here = builder.query_planner().take();
        builder.with_query_planner(Arc::new(RanksPlanner { here, leader: Arc::clone(self) }))
    }
}

impl RanksPlanner {
    async fn plan_with(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        plan_here(self.here.as_deref(), plan, session).await
    }

    /// The plan with the part below its sinks on all ranks; `None` if the first rank must run it. `state` is the session, and `options` are
    /// those that the plan was made with.
    fn on_ranks(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        state: &SessionState,
        options: &ConfigOptions,
        lanes: usize,
        is_analyzed: bool,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let distributed = self.query(&plan, state, options, lanes, is_analyzed).unwrap_or_else(|error| {
            tracing::warn!(%error, "a plan cannot be divided or sent: the first rank runs what it is made of");
            None
        });
        // What is not written by each rank is written where the user is.
        if distributed.is_none() && (is_sink(&plan) || plan.is::<AnalyzeExec>()) {
            let [input] = plan.children()[..] else { return Ok(None) };
            let is_analyzed = is_analyzed || plan.is::<AnalyzeExec>();
            let input = self.on_ranks(Arc::clone(input), state, options, lanes, is_analyzed)?;
            let Some(input) = input else { return Ok(None) };
            let recomputed = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            return plan.replace_children(vec![input], recomputed).map(Some);
        }
        Ok(distributed)
    }

    /// The query of a plan on all ranks; `None` if no rank but the first would have something to do.
    fn query(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        state: &SessionState,
        options: &ConfigOptions,
        lanes: usize,
        is_analyzed: bool,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let settings: BTreeMap<_, _> = travelling(options)?.into_iter().collect();
        let ranks = Ranks { ranks: self.leader.ranks(), lanes, way: self.way(state, lanes) };
        let parts = match plan.downcast_ref::<WriteAsideExec>() {
            Some(write) if WriteAsideExec::can_write_aside(state.runtime_env())? => ranks.distribute_write(write)?,
            _ if is_sink(plan) || plan.is::<AnalyzeExec>() => None,
            _ => ranks.distribute(plan)?,
        };
        let Some(mut parts) = parts else { return Ok(None) };
        // The other ranks do so when their parts arrive. The state that planned for all has none of these rules.
        parts[0] = within_rank(Arc::clone(&parts[0]), state, options)?;
        Ok(Some(Arc::new(RankQueryExec::try_new(Arc::clone(&self.leader), parts, &settings, is_analyzed)?)))
    }

    /// How rows travel.
    fn way(&self, state: &SessionState, lanes: usize) -> Way {
        let settings = state.config_options().extensions.get::<OverspillConfig>();
        let memory = match state.runtime_env().memory_pool.memory_limit() {
            MemoryLimit::Finite(bytes) => bytes,
            MemoryLimit::Infinite | MemoryLimit::Unknown => usize::MAX,
        };
        Way {
            number: 0,
            levels: settings.and_then(|settings| settings.shuffle_levels.0).unwrap_or(self.leader.levels()),
            is_compressed: settings
                .is_none_or(|settings| settings.shuffle_compression != ShuffleCompression::Off.into()),
            round_bytes: (memory / SHARE / lanes).clamp(*ROUND.start(), *ROUND.end()),
        }
    }
}

fn is_enabled(state: &SessionState) -> bool {
    state.config_options().extensions.get::<OverspillConfig>().is_some_and(|settings| settings.enabled)
}

/// The explanation of a plan that runs on all ranks.
fn explaining(
    planned: &Arc<dyn ExecutionPlan>,
    explain: &Explain,
    shown: &Arc<dyn ExecutionPlan>,
) -> Arc<dyn ExecutionPlan> {
    let Some(explaining) = planned.downcast_ref::<ExplainExec>() else { return Arc::clone(planned) };
    let shown = displayable(shown.as_ref());
    let shown = match explain.explain_format {
        ExplainFormat::Tree => shown.tree_render().to_string(),
        ExplainFormat::PostgresJSON => shown.pgjson(explain.verbose).to_string(),
        ExplainFormat::Graphviz => shown.graphviz().to_string(),
        ExplainFormat::Indent => shown.indent(explain.verbose).to_string(),
    };
    let plans = explaining.stringified_plans().iter().map(|plan| match plan.plan_type {
        PlanType::FinalPhysicalPlan => StringifiedPlan::new(PlanType::FinalPhysicalPlan, shown.as_str()),
        _ => plan.clone(),
    });
    Arc::new(ExplainExec::new(planned.schema(), plans.collect(), explaining.verbose()))
}
