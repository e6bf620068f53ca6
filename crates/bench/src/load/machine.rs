//! The machine that all clients share.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use overspill::memory::HeadroomPool;
use overspill::scheduler::Scheduler;
use overspill::size::setting_in_bytes;
use overspill::{OverspillConfig, OverspillRuntime, OverspillSessionExt, QueryUser};

use super::LoadArgs;
use crate::report::{median, tell};
use crate::suite::answer;
use crate::tpch;

/// The end of the names of queries' files.
const QUERY: &str = "sql";
const TABLE: &str = "parquet";

/// How often a query runs alone, after a first time.
const ALONE: usize = 3;

/// A query with its answer, which the CPU gives.
#[derive(Debug)]
pub(super) struct Query {
    pub name: String,
    sql: String,
    /// Seconds that it takes alone, without a scheduler.
    pub alone: f64,
    /// The same on the CPU, if sessions use a GPU.
    pub on_cpu: Option<f64>,
    answer: Vec<String>,
}

/// What all sessions share.
#[derive(Debug)]
pub(super) struct Machine {
    env: Arc<RuntimeEnv>,
    runtime: OverspillRuntime,
    threads: usize,
    tables: Vec<(String, String)>,
    settings: Vec<(String, String)>,
}

impl Machine {
    pub fn new(args: &LoadArgs, threads: usize) -> Result<Self> {
        let limit = usize::try_from(args.memory_limit.as_u64()).unwrap_or(usize::MAX);
        let env = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(HeadroomPool::new(limit))).build_arc()?;
        let settings = args.settings.iter().map(|setting| {
            let pair = setting.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
            pair.ok_or_else(|| exec_datafusion_err!("'{setting}' is not KEY=VALUE"))
        });
        Ok(Self {
            env,
            runtime: OverspillRuntime::default(),
            threads,
            tables: files(&args.dir, TABLE)?,
            settings: settings.collect::<Result<_>>()?,
        })
    }

    /// The memory of all sessions.
    pub fn memory(&self) -> &Arc<dyn MemoryPool> {
        &self.env.memory_pool
    }

    /// A session of a user.
    pub async fn session(&self, user: &str, scheduler: Option<&Arc<Scheduler>>) -> Result<SessionContext> {
        self.session_with(&self.settings, user, scheduler).await
    }

    /// A session on the CPU; `None` if all are.
    async fn session_on_cpu(&self) -> Result<Option<SessionContext>> {
        const DEVICE: &str = "overspill.device";
        if !self.settings.iter().any(|(key, value)| key == DEVICE && value != "cpu") {
            return Ok(None);
        }
        let on_cpu = [(DEVICE.to_owned(), "cpu".to_owned())];
        let settings: Vec<_> = self.settings.iter().cloned().chain(on_cpu).collect();
        self.session_with(&settings, "", None).await.map(Some)
    }

    async fn session_with(
        &self,
        settings: &[(String, String)],
        user: &str,
        scheduler: Option<&Arc<Scheduler>>,
    ) -> Result<SessionContext> {
        let config = SessionConfig::new()
            .with_target_partitions(self.threads)
            .with_extension(Arc::new(self.runtime.clone()))
            .with_extension(Arc::new(QueryUser::new(user)));
        let mut builder = SessionStateBuilder::new_with_default_features()
            .with_config(config)
            .with_runtime_env(Arc::clone(&self.env))
            .with_overspill(OverspillConfig::default());
        for (key, value) in settings {
            builder.config().get_or_insert_default().options_mut().set(key, &setting_in_bytes(key, value)?)?;
        }
        if let Some(scheduler) = scheduler {
            builder = builder.with_overspill_scheduler(Arc::clone(scheduler));
        }
        let session = SessionContext::new_with_state(builder.build());
        for (name, path) in &self.tables {
            session.register_parquet(name, path, ParquetReadOptions::default()).await?;
        }
        Ok(session)
    }

    /// The queries, which are run alone for their answers and their times.
    pub async fn queries(&self, args: &LoadArgs) -> Result<Vec<Query>> {
        let mut texts = vec![];
        match &args.queries {
            Some(folder) => {
                for (name, path) in files(folder, QUERY)? {
                    let sql = std::fs::read_to_string(&path)
                        .map_err(|error| exec_datafusion_err!("The query '{path}' cannot be read: {error}"))?;
                    texts.push((name, sql));
                }
            }
            None => {
                texts.extend(tpch::SUITE.queries().into_iter().map(|query| (format!("q{}", query.number), query.sql)))
            }
        }
        if texts.is_empty() {
            return exec_err!("There are no queries: their files end in .{QUERY}");
        }
        let session = self.session("", None).await?;
        let on_cpu = self.session_on_cpu().await?;
        let mut queries = vec![];
        for (name, sql) in texts {
            tell(&format!("{name} alone"));
            let mut query = Query { name, sql, alone: 0.0, on_cpu: None, answer: vec![] };
            (_, query.answer) = self.rows(on_cpu.as_ref().unwrap_or(&session), &query).await?;
            query.alone = self.alone(&session, &query).await?;
            if let Some(session) = &on_cpu {
                query.on_cpu = Some(self.alone(session, &query).await?);
            }
            queries.push(query);
        }
        Ok(queries)
    }

    /// Seconds that a query takes in a session, the median of some runs after a first one.
    async fn alone(&self, session: &SessionContext, query: &Query) -> Result<f64> {
        self.run(session, query).await?;
        let mut alone = vec![];
        for _ in 0..ALONE {
            alone.push(self.run(session, query).await?);
        }
        Ok(median(alone).unwrap_or(0.0))
    }

    /// Runs a query, and returns its seconds.
    ///
    /// # Errors
    /// If it fails, or its answer is another than before.
    pub async fn run(&self, session: &SessionContext, query: &Query) -> Result<f64> {
        let (took, rows) = self.rows(session, query).await?;
        if !answer::are_same(&query.answer, &rows) {
            return exec_err!(
                "{} gives another answer than alone: {}",
                query.name,
                answer::first_difference(&query.answer, &rows)
            );
        }
        Ok(took)
    }

    async fn rows(&self, session: &SessionContext, query: &Query) -> Result<(f64, Vec<String>)> {
        let failed = |error| exec_datafusion_err!("{} failed: {error}", query.name);
        let start = Instant::now();
        let frame = overspill::sql::sql(session, &query.sql).await.map_err(failed)?;
        let batches = frame.collect().await.map_err(failed)?;
        let took = start.elapsed().as_secs_f64();
        Ok((took, answer::lines(&batches)?))
    }
}

/// The files of a directory with this end, with their names without it.
fn files(folder: &Path, end: &str) -> Result<Vec<(String, String)>> {
    let cannot = |error| exec_datafusion_err!("The directory '{}' cannot be read: {error}", folder.display());
    let mut files = vec![];
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.extension().is_some_and(|extension| extension == end)
            && let Some((name, path)) = path.file_stem().and_then(|name| name.to_str()).zip(path.to_str())
        {
            files.push((name.to_owned(), path.to_owned()));
        }
    }
    files.sort();
    Ok(files)
}
