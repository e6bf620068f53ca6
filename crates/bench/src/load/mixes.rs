//! Mixes of queries at once, on this machine and in the simulator.

use std::sync::Arc;
use std::time::Instant;

use datafusion::common::{Result, exec_datafusion_err};
use overspill::scheduler::{Scheduler, SchedulerConfig};
use overspill_schedule::simulator::{Mix, SimulatedQuery, run as simulate};
use overspill_schedule::{Demand, QueryId, ScheduleConfig, Slots, UserId};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;

use super::LoadPolicy;
use super::machine::{Machine, Query};

/// How many queries a mix has.
const QUERIES: std::ops::RangeInclusive<usize> = 4..=16;

/// Times of a mix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// Seconds from the first arrival to the last end.
    pub overall: f64,
    /// The mean seconds from arrival to end.
    pub mean: f64,
}

/// A mix of queries at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Compared {
    pub policy: LoadPolicy,
    pub measured: Times,
    pub simulated: Times,
}

/// Runs random mixes on this machine, with a scheduler that knows the queries, and in the simulator. `demands` are what the scheduler
/// predicts of each query.
///
/// # Errors
/// That of the first query that fails.
pub(super) async fn compare(
    machine: &Arc<Machine>,
    queries: &Arc<[Query]>,
    demands: &[Demand],
    policy: LoadPolicy,
    scheduler: &Arc<Scheduler>,
    seeds: std::ops::Range<u64>,
) -> Result<Vec<Compared>> {
    let mut compared = vec![];
    for seed in seeds {
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let count = random.random_range(QUERIES);
        let mix: Vec<usize> = (0..count).map(|_| random.random_range(0..queries.len())).collect();
        let measured = measure(machine, queries, scheduler, &mix).await?;
        let mix = mix.iter().map(|query| (&queries[*query], demands[*query]));
        compared.push(Compared { policy, measured, simulated: simulated(scheduler.config(), mix) });
    }
    Ok(compared)
}

async fn measure(
    machine: &Arc<Machine>,
    queries: &Arc<[Query]>,
    scheduler: &Arc<Scheduler>,
    mix: &[usize],
) -> Result<Times> {
    let mut sessions = vec![];
    for place in 0..mix.len() {
        sessions.push(machine.session(&format!("user {place}"), Some(scheduler)).await?);
    }
    let mut running: JoinSet<Result<f64>> = JoinSet::new();
    let start = Instant::now();
    for (query, session) in mix.iter().copied().zip(sessions) {
        let (machine, queries) = (Arc::clone(machine), Arc::clone(queries));
        running.spawn(async move {
            machine.run(&session, &queries[query]).await?;
            Ok(start.elapsed().as_secs_f64())
        });
    }
    let (mut overall, mut sum) = (0.0_f64, 0.0);
    while let Some(end) = running.join_next().await {
        let end = end.map_err(|error| exec_datafusion_err!("A query stopped: {error}"))??;
        (overall, sum) = (overall.max(end), sum + end);
    }
    Ok(Times { overall, mean: sum / mix.len() as f64 })
}

/// What the simulator says of queries at once, which take what they take alone.
fn simulated<'a>(config: &SchedulerConfig, queries: impl Iterator<Item = (&'a Query, Demand)>) -> Times {
    let query = |(number, (query, demand)): (u64, (&Query, Demand))| {
        let cpu = query.on_cpu.unwrap_or(query.alone);
        let gpu = query.on_cpu.map(|_| query.alone);
        SimulatedQuery {
            demand: Demand { id: QueryId(number), user: UserId(number), gpu: demand.gpu.and(gpu), cpu, ..demand },
            arrival: 0.0,
            cpu,
            gpu: gpu.unwrap_or(f64::INFINITY),
        }
    };
    let mix = Mix { queries: (0..).zip(queries).map(query).collect(), move_cost: Mix::MOVE_COST };
    let outcome = simulate(
        &mix,
        &ScheduleConfig {
            policy: config.policy,
            limits: config.gpu_limits,
            processors: config.processors,
            slots: Slots { most: config.most_running, brief: config.brief.as_secs_f64() },
        },
    );
    Times { overall: outcome.overall, mean: outcome.mean() }
}
