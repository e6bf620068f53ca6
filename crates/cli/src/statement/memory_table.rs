//! The statements that keep their rows in memory.

use datafusion::dataframe::DataFrame;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;

/// Executes what only changes the session, and gives the frame that is left to run.
pub async fn execute(context: &SessionContext, plan: LogicalPlan) -> Result<DataFrame> {
    context.execute_logical_plan(plan).await
}
