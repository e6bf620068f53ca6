//! Gives the optimizer rules the session that a query is planned for.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::common::{Result, config_err};
use datafusion::execution::SessionState;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;

use crate::memory::limit_of;
use crate::runtime::OverspillRuntime;
use crate::scheduler::Scheduler;
use crate::shared_subplan::plan_shared;
use crate::table_samples::FilterShares;

/// What rules see of the session while a query is planned. DataFusion gives them nothing but options, and a session may get
/// another memory pool between two queries: `SET datafusion.runtime.memory_limit` makes a new one.
#[derive(Debug, Clone)]
pub(crate) struct PlanningSession {
    /// Bytes that the query may use; `None` without a limit.
    memory_limit: Option<usize>,
    runtime: OverspillRuntime,
    /// Of the query's filters.
    shares: Arc<FilterShares>,
}

impl PlanningSession {
    fn of(state: &SessionState) -> Self {
        let scheduler = Scheduler::of(state.config());
        let memory_limit = limit_of(state.runtime_env().memory_pool.as_ref())
            .map(|limit| scheduler.map_or(limit, |scheduler| scheduler.expected_grant(limit)));
        Self { memory_limit, runtime: OverspillRuntime::of(state.config()), shares: Arc::default() }
    }

    /// The memory limit of the session; `None` without one.
    pub fn memory_limit(options: &ConfigOptions) -> Option<usize> {
        options.extensions.get::<Self>()?.memory_limit
    }

    /// What samples say of the filters of the query.
    pub fn filter_shares(options: &ConfigOptions) -> Arc<FilterShares> {
        options.extensions.get::<Self>().map_or_else(Arc::default, |session| Arc::clone(&session.shares))
    }

    /// The runtime of the session.
    pub fn runtime(options: &ConfigOptions) -> OverspillRuntime {
        options.extensions.get::<Self>().map_or_else(OverspillRuntime::of_process, |session| session.runtime.clone())
    }
}

/// Options with what rules see of a session, to apply rules to a plan that was made for another one.
pub fn with_session(options: &ConfigOptions, state: &SessionState) -> ConfigOptions {
    let mut options = options.clone();
    options.extensions.insert(PlanningSession::of(state));
    options
}

impl ConfigExtension for PlanningSession {
    const PREFIX: &'static str = "overspill_planning";
}

/// It has no settings.
impl ExtensionOptions for PlanningSession {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, _: &str) -> Result<()> {
        config_err!("there is no setting '{key}'")
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        Vec::new()
    }
}

/// Plans queries with `planner`, in a copy of the session whose options have a [`PlanningSession`].
#[derive(Debug)]
pub(crate) struct SessionPlanner {
    pub planner: Arc<dyn QueryPlanner + Send + Sync>,
    /// Whether it plans equal parts of a query once.
    pub shares_subplans: bool,
}

#[async_trait]
impl QueryPlanner for SessionPlanner {
    async fn create_physical_plan(&self, plan: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(state) = session.as_any().downcast_ref::<SessionState>() else {
            return self.planner.create_physical_plan(plan, session).await;
        };
        let mut state = state.clone();
        let planning = PlanningSession::of(&state);
        state.config_mut().options_mut().extensions.insert(planning);
        if self.shares_subplans
            && let Some(planned) = plan_shared(plan, &state).await?
        {
            return Ok(planned);
        }
        self.planner.create_physical_plan(plan, &state).await
    }
}
