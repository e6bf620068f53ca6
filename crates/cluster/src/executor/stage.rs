//! How a task runs: as Ballista's do, with this machine's settings, errors that arrive as they are, and an end when told.

use std::fmt::{self, Debug, Display};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ballista_core::JobId;
use ballista_core::error::BallistaError;
use ballista_core::execution_plans::{ShuffleReaderExec, SortShuffleWriterExec};
use ballista_core::serde::protobuf::{RuntimeStatsReport, ShuffleWritePartition, TaskColumnStats, WindowStateReport};

use ballista_executor::execution_engine::{DefaultExecutionEngine, ExecutionEngine, QueryStageExecutor};
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, Partitioning, ReplaceChildrenOptions};
use datafusion::prelude::SessionConfig;
use overspill::{CountedWindowExec, OverspillConfig, ShuffleCompression, SpillingSortExec};
use overspill_distributed::settings::{on_this_machine, with_settings};

use super::compact::CompactExec;
use super::connections::Connections;
use super::shuffle::{BlockStage, FetchExec, Output};
use super::tasks::Tasks;
use crate::error::{LOST, failed, root_of, sealed};
use crate::network::Network;

/// How long a connection between executors is kept for the next fetch.
const IDLE: Duration = Duration::from_secs(30);

/// The largest share of the memory, in bytes, that an input of a task collects its rows in. More rows do not compress better.
const LARGEST_SHARE: usize = 256 << 20;

/// Makes tasks of plans.
pub struct StageEngine {
    ballista: DefaultExecutionEngine,
    connections: Arc<Connections>,
    machine: OverspillConfig,
    /// Bytes of rows that each input of a task collects before it sends them on.
    share: usize,
    tasks: Arc<Tasks>,
}

impl StageEngine {
    /// An engine for a machine with the settings `machine`. It notes each task in `tasks` while that runs. Each input of a task collects up to
    /// `share` bytes of rows before it sends them on, and fetches rows of other executors over `network`.
    pub fn new(machine: OverspillConfig, share: usize, tasks: Arc<Tasks>, network: Network) -> Self {
        let connections = Arc::new(Connections::new(IDLE, network));
        let ballista = DefaultExecutionEngine::with_client_pool(Arc::clone(&connections) as _);
        Self { ballista, connections, machine, share: share.min(LARGEST_SHARE), tasks }
    }

    /// Reads what other tasks have written a batch at a time. What hash partitionings have sent is blocks if `compressed`.
    fn fetching(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        directory: &str,
        compressed: bool,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let fetching = plan.transform_up(|node| {
            let Some(reader) = node.downcast_ref::<ShuffleReaderExec>() else { return Ok(Transformed::no(node)) };
            let connections = Arc::clone(&self.connections);
            Ok(Transformed::yes(Arc::new(FetchExec::new(reader, directory.to_owned(), connections, compressed)) as _))
        });
        Ok(fetching?.data)
    }

    /// Lets a writer of Ballista have its share of the memory and no more, and batches that hold what they show.
    fn for_ballista(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let input = CompactExec::above(Arc::clone(plan.children()[0]));
        let Some(writer) = plan.downcast_ref::<SortShuffleWriterExec>() else {
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            return plan.replace_children(vec![input], options);
        };
        Ok(Arc::new(SortShuffleWriterExec::try_new(
            writer.job_id().clone(),
            writer.stage_id(),
            input,
            String::new(),
            writer.shuffle_output_partitioning().clone(),
            writer.config().clone().with_memory_limit_per_task_bytes(self.share),
        )?))
    }
}

impl ExecutionEngine for StageEngine {
    fn create_query_stage_exec(
        &self,
        job_id: JobId,
        stage_id: usize,
        task_id: usize,
        global_output_partition_ids: Vec<usize>,
        plan: Arc<dyn ExecutionPlan>,
        work_dir: &str,
        config: &SessionConfig,
    ) -> Result<Arc<dyn QueryStageExecutor>> {
        let job = job_id.as_str().to_owned();
        if plan.exists(|node| Ok(node.is::<DataSinkExec>()))? {
            return Err(failed("executors write no files but those between tasks"));
        }
        // All tasks of a query have this setting from its client: what one writes, others can read.
        let compresses = compresses(config);
        let plan = self.fetching(for_limited_memory(plan)?, work_dir, compresses)?;
        let writer = plan.downcast_ref::<SortShuffleWriterExec>().filter(|_| compresses);
        let runs: Arc<dyn QueryStageExecutor> = match writer.map(SortShuffleWriterExec::shuffle_output_partitioning) {
            Some(Partitioning::Hash(keys, partitions)) => {
                let output = Output {
                    job: job_id,
                    stage: stage_id,
                    task: task_id,
                    directory: work_dir.into(),
                    keys: keys.clone(),
                    partitions: *partitions,
                    share: self.share,
                };
                Arc::new(BlockStage::new(Arc::clone(plan.children()[0]), output))
            }
            _ => {
                let (plan, ids) = (self.for_ballista(plan)?, global_output_partition_ids);
                self.ballista.create_query_stage_exec(job_id, stage_id, task_id, ids, plan, work_dir, config)?
            }
        };
        Ok(Arc::new(Stage { runs, job, machine: self.machine.clone(), tasks: Arc::clone(&self.tasks) }))
    }
}

/// Whether rows between tasks are compressed as blocks. `auto` does: no measurement has found that slower.
fn compresses(config: &SessionConfig) -> bool {
    let settings = config.options().extensions.get::<OverspillConfig>();
    settings.is_none_or(|settings| settings.shuffle_compression != ShuffleCompression::Off.into())
}

/// Replaces sorts and windows by those that keep to the memory pool, node by node: the metrics of a task go by position.
fn for_limited_memory(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let replaced = plan.transform_up(|node| {
        if let Some(sort) = node.downcast_ref::<SortExec>().filter(|sort| sort.fetch().is_none()) {
            return Ok(Transformed::yes(Arc::new(SpillingSortExec::new(sort.clone())) as _));
        }
        match CountedWindowExec::try_new(&node) {
            Some(window) => Ok(Transformed::yes(Arc::new(window) as _)),
            None => Ok(Transformed::no(node)),
        }
    });
    Ok(replaced?.data)
}

/// A task of a stage.
struct Stage {
    runs: Arc<dyn QueryStageExecutor>,
    job: String,
    machine: OverspillConfig,
    tasks: Arc<Tasks>,
}

impl Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&self.runs, f)
    }
}

impl Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.runs, f)
    }
}

#[async_trait]
impl QueryStageExecutor for Stage {
    async fn execute_query_stage(
        &self,
        task_id: usize,
        context: Arc<TaskContext>,
    ) -> Result<Vec<ShuffleWritePartition>> {
        let mut running = self.tasks.enter(&self.job);
        let config = on_this_machine(context.session_config(), &self.machine);
        let context = with_settings(&context, config);
        let done = tokio::select! {
            biased;
            () = running.stopped() => return Err(failed("the executor has stopped its tasks")),
            done = self.runs.execute_query_stage(task_id, context) => done,
        };
        done.map_err(|error| lost(&error).unwrap_or_else(|| sealed(&error)))
    }

    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        self.runs.collect_plan_metrics()
    }

    fn collect_runtime_stats_reports(&self) -> Vec<RuntimeStatsReport> {
        self.runs.collect_runtime_stats_reports()
    }

    fn collect_window_state_reports(&self) -> Result<Vec<WindowStateReport>> {
        self.runs.collect_window_state_reports()
    }

    fn collect_column_stats(&self) -> Vec<TaskColumnStats> {
        self.runs.collect_column_stats()
    }
}

/// The error of a task that has failed because rows of an earlier one could not be fetched. It begins with [`LOST`]. `None` for others.
fn lost(error: &DataFusionError) -> Option<DataFusionError> {
    match root_of(error) {
        DataFusionError::Execution(text) if text.starts_with(LOST) => Some(failed(text)),
        DataFusionError::External(error) => match error.downcast_ref::<BallistaError>()? {
            error @ (BallistaError::FetchFailed(..)
            | BallistaError::GrpcConnectionError(_)
            | BallistaError::GrpcActionError(_)
            | BallistaError::GrpcError(_)) => Some(failed(format!("{LOST}{error}"))),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_rows_are_told_from_failures() {
        let of_fetch = failed(format!("{LOST}rows did not arrive")).context("in a join");
        assert!(matches!(lost(&of_fetch), Some(DataFusionError::Execution(text)) if text.starts_with(LOST)));
        // As a writer of Ballista wraps it.
        let wrapped = DataFusionError::External(Box::new(BallistaError::DataFusionError(Box::new(of_fetch))));
        assert!(matches!(lost(&wrapped), Some(DataFusionError::Execution(text)) if text.starts_with(LOST)));
        let of_ballista = BallistaError::GrpcActionError("no such file".to_owned());
        let of_ballista = DataFusionError::External(Box::new(of_ballista));
        assert!(matches!(lost(&of_ballista), Some(DataFusionError::Execution(text)) if text.starts_with(LOST)));
        assert!(lost(&failed("a sum is beyond the range")).is_none());
        assert!(lost(&DataFusionError::External("a disk is full".into())).is_none());
    }
}
