//! Indexes of tables in memory and of files: statements about them, and joins and filters that look rows up.

mod arrow_files;
mod failures;
mod files;
mod included;
pub(crate) mod random;
mod statements;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use overspill::sql;

/// Runs a statement and returns its rows, as text.
pub(crate) async fn run(ctx: &SessionContext, statement: &str) -> Result<String> {
    let batches = sql::sql(ctx, statement).await?.collect().await?;
    Ok(arrow::util::pretty::pretty_format_batches(&batches)?.to_string())
}

/// The error of a statement that must fail.
async fn refusal(ctx: &SessionContext, statement: &str) -> String {
    match run(ctx, statement).await {
        Ok(rows) => panic!("{statement}: {rows}"),
        Err(error) => error.strip_backtrace(),
    }
}

/// The sum of a metric over a plan that has run.
pub(crate) fn metric(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.sum_by_name(name)).map_or(0, |value| value.as_usize());
    own + plan.children().into_iter().map(|child| metric(child, name)).sum::<usize>()
}
