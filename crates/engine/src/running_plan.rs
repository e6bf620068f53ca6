//! The plan of a statement that runs before it returns anything.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use parking_lot::Mutex;

/// The plan of a statement that changes the session, such as `CREATE TABLE … AS` or `CREATE INDEX`, while it runs: what
/// [`execute_logical_plan`](crate::memory::execute_logical_plan) returns for it has no rows, and it returns only then. An extension of
/// the session's configuration; a session without it shows nothing.
#[derive(Debug, Default)]
pub struct RunningPlan(Mutex<Option<Arc<dyn ExecutionPlan>>>);

/// Shows a plan until it is dropped.
#[derive(Debug)]
pub(crate) struct Shown(Option<Arc<RunningPlan>>);

impl RunningPlan {
    /// The plan whose metrics tell what the statement has done so far; `None` if no such statement runs a plan.
    pub fn plan(&self) -> Option<Arc<dyn ExecutionPlan>> {
        self.0.lock().clone()
    }

    /// Shows the plan of the session's statement.
    pub(crate) fn show(ctx: &SessionContext, plan: &Arc<dyn ExecutionPlan>) -> Shown {
        let running = ctx.state().config().get_extension::<Self>();
        if let Some(running) = &running {
            *running.0.lock() = Some(Arc::clone(plan));
        }
        Shown(running)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(running) = &self.0 {
            *running.0.lock() = None;
        }
    }
}
