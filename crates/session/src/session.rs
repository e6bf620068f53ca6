//! A session: DataFusion's, with Overspill's joins, its limits, files as tables, and the threads that statements run on.

use std::sync::{Arc, Weak};

use datafusion::catalog::{DynamicFileCatalog, UrlTableFactory};
use datafusion::common::config::{ConfigNonZeroUsize, ConfigOptions, Dialect};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};
use overspill::cancellation::interruptible;
use overspill::memory::HeadroomPool;
use overspill::size::setting_in_bytes;
use overspill::spill::SpillDirectory;
use overspill::{OverspillConfig, OverspillRuntime, OverspillSessionExt, RunningPlan};
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tracing::debug_span;

use crate::STATEMENTS;
use crate::budget::{self, Budget};
use crate::error::{Error, Result, cancelled_or, describe, plain};
use crate::files::{ExternalTables, FileTables, LocalFilesOnly};
use crate::limits::Limits;
use crate::progress::Monitor;
use crate::results::Results;
use crate::settings::{Change, ExactLimits};
use crate::statement::prepare;
use crate::workers::{GLANCE, Left, Workers};

/// The maximum nesting depth of parentheses, functions and subqueries; DataFusion's own limit is 50.
const NESTING: usize = 300;

/// A session of Overspill. It runs one statement at a time, on threads of its own. Clones are the same session.
///
/// A session may be used from any thread. [`run`](Self::run) and [`cancel`](Self::cancel) want a Tokio runtime with timers.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

/// Fields are dropped in this order: the spill directory must outlive the session's disk manager, which first removes its own
/// files in it.
struct Shared {
    workers: Mutex<Workers>,
    running: Mutex<Running>,
    running_plan: Arc<RunningPlan>,
    context: SessionContext,
    warnings: Vec<String>,
    _spill: Option<SpillDirectory>,
}

#[derive(Default)]
struct Running {
    /// Alive as long as its results are read.
    turn: Weak<()>,
    task: Option<AbortHandle>,
    is_cancelled: bool,
}

impl Session {
    /// Opens a session with limits, and with settings as `SET` makes them: pairs of a key, of `overspill.*` or
    /// `datafusion.*`, and a value. It shares GPUs with the sessions that have the same `runtime`.
    ///
    /// # Errors
    /// A setting or the temporary directory cannot be used, or threads cannot be started.
    pub fn open(limits: &Limits, settings: &[(String, String)], runtime: OverspillRuntime) -> Result<Self> {
        Self::open_extended(limits, settings, runtime, Ok)
    }

    /// Opens a session as [`open`](Self::open) does, whose state `extend` has added to: another planner, or settings of its own.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and those of `extend`.
    pub fn open_extended(
        limits: &Limits,
        settings: &[(String, String)],
        runtime: OverspillRuntime,
        extend: impl FnOnce(SessionStateBuilder) -> Result<SessionStateBuilder, DataFusionError>,
    ) -> Result<Self> {
        let threads = budget::threads(limits.threads, limits.memory);
        let budget = Budget::of(limits.memory, threads);
        let running_plan = Arc::new(RunningPlan::default());
        let mut config = SessionConfig::new()
            .with_information_schema(true)
            .with_target_partitions(threads)
            .with_extension(Arc::new(runtime))
            .with_extension(Arc::clone(&running_plan));
        budget.apply(config.options_mut())?;
        let parser = &mut config.options_mut().sql_parser;
        // Record spans, so that errors point to their place.
        parser.collect_spans = true;
        parser.recursion_limit = ConfigNonZeroUsize::try_new(NESTING)?;
        let mut warnings = Vec::new();
        let spill = spill_directory(limits, &mut warnings)?;
        let exact_limits = Arc::new(ExactLimits::default());
        let mut builder = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_runtime_env(runtime_env(limits, &budget, spill.as_ref())?)
            .with_overspill(OverspillConfig::default())
            .with_analyzer_rule(Arc::clone(&exact_limits) as _);
        builder = extend(interruptible(builder))?;
        for (key, value) in settings {
            set(builder.config().get_or_insert_default().options_mut(), key, value)?;
        }
        let mut state = builder.build();
        overspill::files::register(&mut state)?;
        for factory in state.table_factories_mut().values_mut() {
            *factory = Arc::new(ExternalTables::default());
        }
        let context = with_files_as_tables(SessionContext::new_with_state(state));
        exact_limits.session.set(&context);
        let (workers, running) = (Mutex::new(Workers::start(threads)?), Mutex::default());
        Ok(Self { shared: Arc::new(Shared { workers, running, running_plan, context, warnings, _spill: spill }) })
    }

    /// Sentences about what the session lacks and may do without, such as a temporary directory.
    pub fn warnings(&self) -> &[String] {
        &self.shared.warnings
    }

    /// The session of DataFusion, to register tables and functions. What it runs itself is not cancelled with the session's
    /// statement, and lacks what [`run`](Self::run) adds to DataFusion's SQL.
    pub fn context(&self) -> &SessionContext {
        &self.shared.context
    }

    /// Watches statements before they return: those that only change the session, such as `CREATE TABLE … AS`, have run by then.
    pub fn monitor(&self) -> Monitor {
        Monitor::of_running(&self.shared.running_plan, &self.shared.context.runtime_env().memory_pool)
    }

    /// The dialect of the session's SQL, which a [`Splitter`](crate::Splitter) needs.
    pub fn dialect(&self) -> Dialect {
        self.shared.context.state().config().options().sql_parser.dialect
    }

    /// Plans one statement, and starts it. A statement that only changes the session has run when this returns.
    ///
    /// Dropping the future or the results stops the statement; so does [`cancel`](Self::cancel). An operator that computes for
    /// long without yielding blocks neither.
    ///
    /// # Errors
    /// The error of the statement. It is one as well if results of an earlier statement are still being read.
    pub async fn run(&self, sql: &str) -> Result<Results> {
        let turn = self.take_turn()?;
        self.settle(&Arc::downgrade(&turn)).await?;
        let preparing = debug_span!("prepare", group = STATEMENTS, lane = STATEMENTS);
        let describe = {
            let (session, sql) = (self.clone(), sql.to_owned());
            move |error| {
                let _turn = &turn;
                describe(error, &sql, &session.shared.context)
            }
        };
        let mut preparation = JoinSet::new();
        self.spawn(&mut preparation, prepare(self.shared.context.clone(), sql.to_owned()))?;
        let prepared = match preparation.join_next().await {
            Some(Ok(prepared)) => prepared.map_err(&describe)?,
            Some(Err(stopped)) => return Err(cancelled_or(stopped, &describe)),
            None => return Err(closed()),
        };
        drop(preparing);
        let running = debug_span!("run", group = STATEMENTS, lane = STATEMENTS);
        let (mut results, task) = Results::new(prepared, running, describe);
        self.spawn(results.task(), task)?;
        Ok(results)
    }

    /// Stops the running statement, and waits shortly until its threads are free. May be called from any thread, and after a
    /// statement has ended, for what it has left. The statement's results then end with an error.
    ///
    /// # Errors
    /// New threads cannot be started in place of those that work that cannot be stopped keeps.
    pub async fn cancel(&self) -> Result<Left> {
        let turn = {
            let running = &mut *self.shared.running.lock();
            running.is_cancelled = true;
            running.task.take().iter().for_each(AbortHandle::abort);
            Weak::clone(&running.turn)
        };
        self.settle(&turn).await
    }

    /// Ends the threads of the session, within two seconds. Later statements fail. Must not be called from a task.
    pub fn close(&self) {
        self.shared.workers.lock().end();
    }

    /// Waits shortly for what statements have left, up to the one of this turn. The work of a later statement is not theirs.
    async fn settle(&self, turn: &Weak<()>) -> Result<Left> {
        let start = Instant::now();
        loop {
            {
                // The next statement takes its turn under this lock, and cannot start work meanwhile.
                let running = self.shared.running.lock();
                if !running.turn.ptr_eq(turn) {
                    return Ok(Left::Nothing);
                }
                if let Some(left) = self.shared.workers.lock().settled(start)? {
                    return Ok(left);
                }
            }
            sleep(GLANCE).await;
        }
    }

    /// A value that lives as long as the next statement. No other statement starts meanwhile.
    fn take_turn(&self) -> Result<Arc<()>> {
        let mut running = self.shared.running.lock();
        if running.turn.strong_count() > 0 {
            return Err(Error::new(
                "Another statement of this session is running: read its results to the end and drop them, or open another \
                 session",
            ));
        }
        let turn = Arc::new(());
        *running = Running { turn: Arc::downgrade(&turn), task: None, is_cancelled: false };
        Ok(turn)
    }

    /// Starts a task of the running statement.
    fn spawn<T: Send + 'static>(
        &self,
        tasks: &mut JoinSet<T>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<()> {
        let mut running = self.shared.running.lock();
        running.task = Some(self.shared.workers.lock().spawn(tasks, task).ok_or_else(closed)?);
        if running.is_cancelled {
            tasks.abort_all();
        }
        Ok(())
    }
}

fn closed() -> Error {
    Error::new("The session is closed")
}

/// The directory for this process's spill files. If none was specified, a machine without a place for temporary files can
/// still run queries that fit in memory.
fn spill_directory(limits: &Limits, warnings: &mut Vec<String>) -> Result<Option<SpillDirectory>> {
    let Some(root) = &limits.temp_dir else {
        let opened = SpillDirectory::open(&std::env::temp_dir());
        let opened = opened.inspect_err(|error| warnings.push(format!("nothing can be spilled: {}", plain(error))));
        return Ok(opened.ok());
    };
    Ok(Some(SpillDirectory::open(root)?))
}

fn runtime_env(limits: &Limits, budget: &Budget, spill: Option<&SpillDirectory>) -> Result<Arc<RuntimeEnv>> {
    let disk = DiskManagerBuilder::default().with_max_spill_merge_fan_in(budget.merged_runs);
    let mut disk = disk.with_mode(match spill {
        Some(directory) => DiskManagerMode::Directories(vec![directory.path().to_path_buf()]),
        None => DiskManagerMode::Disabled,
    });
    if let Some(bytes) = limits.temp {
        disk.set_max_temp_directory_size(bytes as u64);
    }
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(HeadroomPool::new(limits.memory)))
        .with_disk_manager_builder(disk)
        .with_object_store_registry(Arc::new(LocalFilesOnly::default()))
        .with_metadata_cache_limit(budget.metadata_cache)
        // A cached listing would hide files that other programs, or COPY, add to a folder.
        .with_object_list_cache_limit(0)
        .build_arc();
    Ok(runtime?)
}

/// Makes one setting. Errors name the key.
fn set(options: &mut ConfigOptions, key: &str, value: &str) -> Result<()> {
    if key.starts_with("datafusion.runtime.") {
        return Err(Error::new(format!(
            "setting {key}: memory and the temporary directory are limits of the session, on the command line \
             --memory-limit, --temp-dir and --temp-limit"
        )));
    }
    let change = Change { key: key.to_string(), value: value.to_string() };
    let made = setting_in_bytes(key, value).and_then(|value| options.set(key, &value));
    made.map_err(|error| Error::new(format!("setting {key}={value}: {}", plain(&change.refused(&error, options)))))
}

fn with_files_as_tables(context: SessionContext) -> SessionContext {
    let files = Arc::new(FileTables::default());
    let catalogs = DynamicFileCatalog::new(
        Arc::clone(context.state().catalog_list()),
        Arc::clone(&files) as Arc<dyn UrlTableFactory>,
    );
    context.register_catalog_list(Arc::new(catalogs));
    files.session.set(&context);
    context
}
