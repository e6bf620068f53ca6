//! The ranks that serve the first.

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{Result, exec_err};
use datafusion::execution::{SessionState, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::AsExecutionPlan;
use datafusion_proto::protobuf::PhysicalPlanNode;
use futures::TryStreamExt;
use overspill::OverspillConfig;
use overspill_distributed::settings::{VERSION, on_this_machine};
use overspill_exchange::transport::{Endpoint, Job, JobId};
use tokio::task::JoinSet;

use crate::codec::RanksCodec;
use crate::error::{cause_of, of_exchange};
use crate::job::RankJob;
use crate::message::{Order, Report};
use crate::metrics::metrics_of;
use crate::part::{close_exchanges, exchanged, in_job, open_right_sides, within_rank};

/// How long queries that have failed may take to end when the first rank ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs this rank's part of the queries of the first rank, until that ends. They have the memory, the directory and the machine's settings
/// of this session, and all other settings of theirs.
///
/// # Errors
/// A rank is lost, or a query does not end five seconds after the first rank has.
pub async fn serve(endpoint: &Arc<Endpoint>, session: &SessionState) -> Result<()> {
    let mut running = JoinSet::new();
    for number in 0.. {
        let job = Job::begin(endpoint, JobId(number));
        match Order::receive(&job).await {
            Ok(order) if order.plan.is_empty() => break,
            Ok(order) => {
                let part = run(job, order, session.clone());
                running.spawn(part);
            }
            // A query may fail before it has begun here. The next has another job.
            Err(_) => {
                if let Some(lost) = endpoint.lost() {
                    return Err(of_exchange(&lost));
                }
            }
        }
        while running.try_join_next().is_some() {}
    }
    let ended = tokio::time::timeout(PATIENCE, async { while running.join_next().await.is_some() {} }).await;
    if ended.is_err() {
        return exec_err!("a query did not end within {} s after it was stopped", PATIENCE.as_secs());
    }
    Ok(())
}

/// Fails all queries of the first rank with these words, until it ends: this rank cannot run any.
///
/// # Errors
/// A rank is lost.
pub async fn refuse(endpoint: &Arc<Endpoint>, cause: &str) -> Result<()> {
    for number in 0.. {
        let job = Job::begin(endpoint, JobId(number));
        match Order::receive(&job).await {
            Ok(order) if order.plan.is_empty() => break,
            Ok(_) => {
                job.fail(cause);
            }
            Err(_) => {
                if let Some(lost) = endpoint.lost() {
                    return Err(of_exchange(&lost));
                }
            }
        }
    }
    Ok(())
}

/// Runs a part. If that fails, all ranks learn it.
async fn run(job: Job, order: Order, session: SessionState) {
    let job = Arc::new(RankJob::new(job));
    let part = tokio::spawn({
        let job = Arc::clone(&job);
        async move { run_part(&job, order, &session).await }
    });
    let ended = part.await;
    job.drop_ready();
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            job.job().fail(&cause_of(&error));
        }
        Err(error) => {
            job.job().fail(&format!("its part of the query has panicked: {error}"));
        }
    }
    job.sent().await;
}

async fn run_part(job: &Arc<RankJob>, order: Order, session: &SessionState) -> Result<()> {
    let is_analyzed = order.is_analyzed;
    if order.version != VERSION {
        return exec_err!("it runs {VERSION}, and the first rank {}: all must run the same version", order.version);
    }
    let machine = session.config_options().extensions.get::<OverspillConfig>().cloned().unwrap_or_default();
    let mut config = session.config().clone();
    for (key, value) in &order.settings {
        config.options_mut().set(key, value)?;
    }
    let config = on_this_machine(&config, &machine);
    let context: Arc<TaskContext> = in_job(&session.task_ctx(), config, job);
    let plan = PhysicalPlanNode::try_decode(&order.plan)?;
    let plan = plan.try_into_physical_plan(&context, &RanksCodec::default())?;
    let plan: Arc<dyn ExecutionPlan> = within_rank(plan, session, context.session_config().options())?;
    open_right_sides(&plan, &context)?;
    let mut rows = plan.execute(0, Arc::clone(&context))?;
    while rows.try_next().await?.is_some() {}
    drop(rows);
    // Rows may still be on their way to the first rank, and operators below may not have begun.
    job.sent().await;
    close_exchanges(&plan, job, &context)?;
    job.sent().await;
    job.committed().await?;
    let exchanges = exchanged(job).into_iter().map(|(number, exchanged)| (number, exchanged.into())).collect();
    let nodes = if is_analyzed { metrics_of(&plan) } else { vec![] };
    Report { exchanges, nodes }.send(job.job()).await
}
