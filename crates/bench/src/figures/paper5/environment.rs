//! Who decides where queries run (table 1 of the paper), and what becomes of queries that come at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use overspill::scheduler::{Scheduler, SchedulerConfig};
use overspill::{Choice, DeviceKind, OverspillConfig, OverspillRuntime, OverspillSessionExt, QueryUser};
use overspill_schedule::{
    Action, Decision, Entry, Limits, OverspillSettings, Paper5Settings, Place, PolicyKind, What, check,
};
use tokio::task::JoinSet;

use super::super::bench::Bench;
use super::tables::Tables;
use crate::report::failed;
use crate::suite::answer;

/// Who decides where queries run.
#[derive(Debug, Clone)]
pub(super) enum Environment {
    /// All start at once, at one place.
    At(Place),
    /// All start at once, each at its place.
    Placed([Place; 4]),
    /// A scheduler.
    Scheduled(PolicyKind),
}

/// A query with its answer.
#[derive(Debug, Clone)]
pub(super) struct Query {
    pub sql: String,
    pub answer: Vec<String>,
}

/// Seconds from the arrival of queries that came at once.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    /// Until the end of each query.
    pub each: Vec<f64>,
    /// Until the last end of those on the CPU; `None` without any.
    pub cpu: Option<f64>,
    /// The same on the GPU.
    pub gpu: Option<f64>,
    /// The number of queries in which kernels took part.
    pub with_kernels: usize,
}

impl Ended {
    /// Until the last end.
    pub fn overall(&self) -> f64 {
        self.each.iter().copied().fold(0.0, f64::max)
    }

    pub fn mean(&self) -> f64 {
        self.each.iter().sum::<f64>() / self.each.len() as f64
    }
}

impl Environment {
    pub fn paper5() -> Self {
        Self::Scheduled(PolicyKind::Paper5(Paper5Settings::default()))
    }

    pub fn overspill() -> Self {
        Self::Scheduled(PolicyKind::Overspill(OverspillSettings::default()))
    }

    /// Whether queries may be on the GPU.
    pub fn uses_gpu(&self) -> bool {
        match self {
            Self::At(place) => *place == Place::Gpu,
            Self::Placed(places) => places.contains(&Place::Gpu),
            Self::Scheduled(_) => true,
        }
    }

    /// The place of a query; `None` if a scheduler decides.
    fn place(&self, number: usize) -> Option<Place> {
        match self {
            Self::At(place) => Some(*place),
            Self::Placed(places) => Some(places[number]),
            Self::Scheduled(_) => None,
        }
    }

    /// Runs queries at once, and checks their answers.
    ///
    /// # Errors
    /// If a query fails, gives another answer, or is scheduled against the limits.
    pub async fn run(&self, bench: &Bench, gpu_memory: u64, tables: &Tables, queries: &[Query]) -> Result<Ended> {
        let scheduler = self.scheduler(gpu_memory)?;
        let mut sessions = vec![];
        for number in 0..queries.len() {
            let device = if self.place(number) == Some(Place::Cpu) { DeviceKind::Cpu } else { bench.device() };
            sessions.push(session(bench, device, gpu_memory, scheduler.as_ref(), tables).await?);
        }
        let mut running: JoinSet<Result<(usize, f64, bool)>> = JoinSet::new();
        let start = Instant::now();
        for (number, (query, session)) in queries.iter().cloned().zip(sessions).enumerate() {
            running.spawn(async move {
                let (rows, has_kernels) = answer_of(&session, &query.sql).await?;
                let took = start.elapsed().as_secs_f64();
                if !answer::are_same(&query.answer, &rows) {
                    let difference = answer::first_difference(&query.answer, &rows);
                    return exec_err!("'{}' gives another answer than alone: {difference}", query.sql);
                }
                Ok((number, took, has_kernels))
            });
        }
        let (mut each, mut with_kernels) = (vec![0.0; queries.len()], 0);
        while let Some(ended) = running.join_next().await {
            let (number, took, has_kernels) =
                ended.map_err(|error| exec_datafusion_err!("A query stopped: {error}"))??;
            each[number] = took;
            with_kernels += usize::from(has_kernels);
        }
        let (cpu, gpu) = match scheduler {
            Some(scheduler) => {
                let log = scheduler.log();
                let SchedulerConfig { gpu_limits, most_running, .. } = scheduler.config();
                check(&log, gpu_limits, *most_running).map_err(failed)?;
                (last_end(&log, Place::Cpu), last_end(&log, Place::Gpu))
            }
            None => {
                let last = |at| {
                    let there = each.iter().enumerate().filter(|(number, _)| self.place(*number) == Some(at));
                    there.map(|(_, time)| *time).reduce(f64::max)
                };
                (last(Place::Cpu), last(Place::Gpu))
            }
        };
        Ok(Ended { each, cpu, gpu, with_kernels })
    }

    /// The policy decides on all queries, however short. As many as come may run at once.
    fn scheduler(&self, gpu_memory: u64) -> Result<Option<Arc<Scheduler>>> {
        let Self::Scheduled(policy) = self else { return Ok(None) };
        let measured = SchedulerConfig::measured(*policy, &OverspillRuntime::of_process());
        let gpu_limits = match policy {
            PolicyKind::Overspill(_) => measured.gpu_limits,
            _ => Limits { memory: gpu_memory, ..measured.gpu_limits },
        };
        let (most_running, brief) = (usize::MAX, Duration::ZERO);
        let config = SchedulerConfig { gpu_limits, most_running, brief, ..measured };
        Scheduler::new(config).map(|scheduler| Some(Arc::new(scheduler)))
    }
}

/// Seconds from the first arrival to the last end of a query at a place, where it was in the end.
fn last_end(log: &[Entry], at: Place) -> Option<f64> {
    let first = log.first()?.at;
    let place = |id| {
        let decided = log.iter().rev().find_map(|entry| match entry.what {
            What::Decided(Decision { id: of, action, .. }) if of == id => Some(action),
            _ => None,
        });
        decided.map(|action| match action {
            Action::Start(place) => place,
            Action::Move => Place::Cpu,
        })
    };
    let ends = log.iter().filter(|entry| matches!(entry.what, What::Ended(id) if place(id) == Some(at)));
    ends.map(|entry| entry.at - first).reduce(f64::max)
}

/// Runs a query. Returns its rows as lines, and whether kernels took part.
pub(super) async fn answer_of(session: &SessionContext, sql: &str) -> Result<(Vec<String>, bool)> {
    let plan = session.sql(sql).await?.create_physical_plan().await?;
    let rows = collect(Arc::clone(&plan), session.task_ctx()).await?;
    Ok((answer::lines(&rows)?, has_kernels(&plan)))
}

/// Whether kernels took rows of a join or a filter in an executed plan.
fn has_kernels(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let took =
        |name| plan.metrics().and_then(|metrics| metrics.sum_by_name(name)).is_some_and(|rows| rows.as_usize() > 0);
    took("gpu_rows") || took("gpu_probe_rows") || plan.children().into_iter().any(has_kernels)
}

/// A session over the tables.
pub(super) async fn session(
    bench: &Bench,
    device: DeviceKind,
    gpu_memory: u64,
    scheduler: Option<&Arc<Scheduler>>,
    tables: &Tables,
) -> Result<SessionContext> {
    let config =
        SessionConfig::new().with_target_partitions(bench.threads).with_extension(Arc::new(QueryUser::new("figure")));
    let mut builder =
        SessionStateBuilder::new_with_default_features().with_config(config).with_overspill(OverspillConfig {
            device: Choice(Some(device)),
            gpu_memory_limit: usize::try_from(gpu_memory).unwrap_or(usize::MAX),
            ..OverspillConfig::default()
        });
    if let Some(scheduler) = scheduler {
        builder = builder.with_overspill_scheduler(Arc::clone(scheduler));
    }
    let session = SessionContext::new_with_state(builder.build());
    tables.register(&session).await?;
    Ok(session)
}
