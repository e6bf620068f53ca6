//! Queries of sessions that share a scheduler.

mod admission;
mod load;
mod places;

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};
use overspill::memory::HeadroomPool;
use overspill::scheduler::{QueryState, Scheduler, SchedulerConfig};
use overspill::{OverspillConfig, OverspillSessionExt, QueryUser};
use tempfile::TempDir;

/// Sessions on one machine.
struct Sessions {
    scheduler: Arc<Scheduler>,
    env: Arc<RuntimeEnv>,
    temp: TempDir,
}

/// A scheduler that lets one query run at a time, however short.
fn one_at_a_time() -> SchedulerConfig {
    SchedulerConfig { most_running: 1, brief: Duration::ZERO, ..SchedulerConfig::default() }
}

impl Sessions {
    fn new(config: SchedulerConfig, memory: usize) -> Self {
        let temp = TempDir::new().unwrap();
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![temp.path().into()]));
        let pool: Arc<dyn MemoryPool> = Arc::new(HeadroomPool::new(memory));
        let env = RuntimeEnvBuilder::new().with_memory_pool(pool).with_disk_manager_builder(disk).build_arc().unwrap();
        Self { scheduler: Arc::new(Scheduler::new(config).unwrap()), env, temp }
    }

    /// A session of a user.
    fn session(&self, user: &str, config: OverspillConfig) -> SessionContext {
        let session = SessionConfig::new()
            .with_target_partitions(2)
            .with_information_schema(true)
            .with_extension(Arc::new(QueryUser::new(user)));
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(session)
            .with_runtime_env(Arc::clone(&self.env))
            .with_overspill(config)
            .with_overspill_scheduler(Arc::clone(&self.scheduler));
        SessionContext::new_with_state(state.build())
    }

    fn states(&self) -> Vec<QueryState> {
        self.scheduler.queries().iter().map(|query| query.state).collect()
    }

    /// Waits until the queries are in such states.
    async fn reach(&self, what: &str, is_so: impl Fn(&[QueryState]) -> bool) {
        for _ in 0..2000 {
            if is_so(&self.states()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{what}: {:?}", self.scheduler.queries());
    }

    /// Asserts that nothing is left once all queries are over. Tasks that were aborted may need a moment.
    async fn assert_nothing_left(&self) {
        let left = || {
            let files: Vec<_> = walk(self.temp.path());
            (self.scheduler.queries(), self.env.memory_pool.reserved(), files)
        };
        for _ in 0..400 {
            let (queries, reserved, files) = left();
            if queries.is_empty() && reserved == 0 && files.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?} are left", left());
    }
}

/// The files below a directory.
fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.flat_map(|entry| if entry.path().is_dir() { walk(&entry.path()) } else { vec![entry.path()] }).collect()
}

fn is_running(state: &QueryState) -> bool {
    matches!(state, QueryState::Running { .. })
}

fn waits(state: &QueryState) -> bool {
    *state == QueryState::Waiting
}

/// Runs a statement, and returns its rows as text.
async fn text(session: &SessionContext, sql: &str) -> String {
    let batches = overspill::sql::sql(session, sql).await.unwrap().collect().await.unwrap();
    shown(&batches)
}

fn shown(batches: &[RecordBatch]) -> String {
    arrow::util::pretty::pretty_format_batches(batches).unwrap().to_string()
}
