//! One run of one query.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result};
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::{DataFrame, SessionContext};

use super::plan::PlanReport;
use super::rows::Answer;

/// Nothing that the tests ask for takes a tenth of it; a run that does is hung.
pub const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A query that ran, well or not.
pub struct Run {
    pub answer: Result<Answer>,
    pub report: PlanReport,
    /// The plan as EXPLAIN shows it; the plan itself is gone, and with it all that it may hold.
    pub plan: String,
}

impl Run {
    /// Runs `frame` to its end. A panic or a run that never ends comes back as an error of kind `Execution` that
    /// [`Run::broken`] recognises.
    pub async fn of(ctx: &SessionContext, frame: Result<DataFrame>) -> Self {
        let plan = match frame {
            Ok(frame) => frame.create_physical_plan().await,
            Err(error) => Err(error),
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => return Self { answer: Err(error), report: PlanReport::default(), plan: String::new() },
        };
        let running = tokio::spawn(collect(Arc::clone(&plan), ctx.task_ctx()));
        let abort = running.abort_handle();
        let answer = match tokio::time::timeout(TIME_LIMIT, running).await {
            Ok(Ok(Ok(batches))) => Answer::new(plan.schema(), batches),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(panic)) => Err(DataFusionError::Execution(format!("{BROKEN} it panicked: {panic}"))),
            Err(_) => {
                abort.abort();
                Err(DataFusionError::Execution(format!("{BROKEN} no end after {TIME_LIMIT:?}")))
            }
        };
        let text = displayable(plan.as_ref()).indent(false).to_string();
        Self { answer, report: PlanReport::of(&plan), plan: text }
    }
}

const BROKEN: &str = "the run is broken:";

/// Whether an error stands for a panic or a hang, which no fault excuses. DataFusion turns a panic of one of its own
/// tasks into an error; the text of a panicked task distinguishes it from a proper one.
pub fn is_broken(error: &DataFusionError) -> bool {
    let text = error.to_string();
    text.contains(BROKEN) || text.contains("panicked") || text.contains("Internal error")
}

/// Whether an error says that memory is short.
pub fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}
