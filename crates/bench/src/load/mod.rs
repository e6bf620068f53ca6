//! The experiment `overspill bench load`: many clients that run queries at the same time, on one machine and in one memory limit.

mod client;
mod machine;
mod mixes;
mod report;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill::OverspillRuntime;
use overspill::scheduler::{Scheduler, SchedulerConfig};
use overspill_machine::topology::Topology;
use overspill_schedule::{Action, Decision, Demand, OverspillSettings, Paper5Settings, Place, PolicyKind, What, check};

use crate::datagen::{self, Compression};
use crate::report::{failed, median, slow_build, tell, write_file};
use client::Ran;
use machine::{Machine, Query};

/// Who decides which queries run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadPolicy {
    /// No scheduler: all queries start at once, and compete for memory and the GPU
    None,
    /// A scheduler: all on the CPU
    AllCpu,
    /// A scheduler: all on the GPU that can use it
    AllGpu,
    /// A scheduler: the GPU in the order of arrival
    FirstCome,
    /// A scheduler: paper 5
    Paper5,
    /// A scheduler: whatever makes the sum of all turnarounds least
    Overspill,
}

/// Whose clients these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadUsers {
    /// Each client is of a user of its own
    Each,
    /// The first client is of one user, all others are of another
    First,
}

/// The arguments of `overspill bench load`.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// How many clients run queries at the same time; may be given several times
    #[arg(long, value_name = "N", default_values = ["1", "2", "4", "8", "16"], value_delimiter = ',')]
    pub clients: Vec<NonZeroUsize>,

    /// Who decides which queries run; may be given several times
    #[arg(long, value_enum, default_values = ["none", "overspill"], value_delimiter = ',')]
    pub policy: Vec<LoadPolicy>,

    /// Whose clients these are: no user's queries keep those of another waiting for long
    #[arg(long, value_enum, default_value = "each")]
    pub users: LoadUsers,

    /// For how many seconds clients start queries
    #[arg(long, default_value = "30", value_name = "S", value_parser = seconds)]
    pub seconds: f64,

    /// A directory with queries, each in a file that ends in .sql [default: the 22 queries of TPC-H]
    #[arg(long, value_name = "DIR")]
    pub queries: Option<PathBuf>,

    /// The directory of the tables, Parquet files named as the tables are; those of TPC-H are made if they are missing
    #[arg(long, value_name = "DIR", default_value = "bench-data")]
    pub dir: PathBuf,

    /// The scale factor of TPC-H
    #[arg(long, default_value_t = 1.0, value_name = "N")]
    pub scale: f64,

    /// The memory limit of all queries together
    #[arg(long, default_value = "2GB", value_name = "SIZE")]
    pub memory_limit: ByteSize,

    /// The most queries that a scheduler lets run at once, beside brief ones
    #[arg(long, value_name = "N")]
    pub most_running: Option<usize>,

    /// Threads of all queries together [default: one for each processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,

    /// A setting of all sessions; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,

    /// How many random mixes of 4 to 16 queries at once to run under each scheduler, and in the simulator
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub mixes: u64,

    /// Seed of the mixes, and of the orders in which clients run queries
    #[arg(long, default_value = "1", value_name = "N")]
    pub seed: u64,

    /// Write the numbers to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("it is a number from 0.1 to 86400".to_owned()),
    }
}

impl LoadPolicy {
    fn kind(self) -> Option<PolicyKind> {
        Some(match self {
            Self::None => return None,
            Self::AllCpu => PolicyKind::AllCpu,
            Self::AllGpu => PolicyKind::AllGpu,
            Self::FirstCome => PolicyKind::FirstCome,
            Self::Paper5 => PolicyKind::Paper5(Paper5Settings::default()),
            Self::Overspill => PolicyKind::Overspill(OverspillSettings::default()),
        })
    }

    fn scheduler(self, most_running: Option<usize>) -> Result<Option<Arc<Scheduler>>> {
        let Some(policy) = self.kind() else { return Ok(None) };
        let measured = SchedulerConfig::measured(policy, &OverspillRuntime::of_process());
        let most_running = most_running.unwrap_or(measured.most_running);
        let config = SchedulerConfig { most_running, ..measured };
        Scheduler::new(config).map(|scheduler| Some(Arc::new(scheduler)))
    }
}

/// What clients did under a policy.
#[derive(Debug)]
struct Load {
    policy: LoadPolicy,
    clients: usize,
    /// Seconds from the first start to the last end.
    elapsed: f64,
    ran: Vec<Ran>,
    /// Seconds of each run of a query that takes no time, beside the others.
    brief: Vec<f64>,
    /// Bytes of memory that all reserved together, at most.
    most_reserved: usize,
}

/// By which factor predictions of queries were wrong, alone and before any run, and after three.
#[derive(Debug, Clone, Copy)]
struct Predicted {
    at_first: f64,
    after_three: f64,
}

/// Runs the experiment and prints its table.
///
/// # Errors
/// If a query fails, gives another answer than when it ran alone, or is scheduled against the limits.
pub(crate) fn run(args: &LoadArgs, out: &mut dyn Write) -> Result<()> {
    // Looking for GPUs would select their driver, where sessions may want the stand-in.
    let topology = Topology::without_gpus();
    let threads = args.threads.map_or(topology.cpu.threads.max(1), NonZeroUsize::get);
    if args.queries.is_none() {
        let tables = datagen::TablesArgs {
            scale: args.scale,
            dir: args.dir.clone(),
            compression: Compression::Snappy,
            force: false,
            threads: args.threads,
        };
        datagen::generate_tpch(&tables, &mut std::io::sink())?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let runtime = runtime.map_err(|error| exec_datafusion_err!("There are no threads: {error}"))?;
    let machine = Arc::new(Machine::new(args, threads)?);
    let queries: Arc<[Query]> = runtime.block_on(machine.queries(args))?.into();
    let mut loads = vec![];
    let (mut predicted, mut compared) = (None, vec![]);
    for policy in &args.policy {
        if let Some(scheduler) = policy.scheduler(args.most_running)?
            && (predicted.is_none() || args.mixes > 0)
        {
            let (learned, demands) = runtime.block_on(predictions(&machine, &queries, &scheduler))?;
            predicted.get_or_insert(learned);
            let seeds = args.seed..args.seed.saturating_add(args.mixes);
            let mixes = mixes::compare(&machine, &queries, &demands, *policy, &scheduler, seeds);
            compared.extend(runtime.block_on(mixes)?);
            keeps_limits(&scheduler)?;
        }
        for clients in &args.clients {
            tell(&format!("{clients} clients, {policy:?}"));
            let scheduler = policy.scheduler(args.most_running)?;
            let load = client::Clients {
                count: clients.get(),
                users: args.users,
                seconds: Duration::from_secs_f64(args.seconds),
                seed: args.seed,
                scheduler: scheduler.clone(),
            };
            let load = runtime.block_on(load.run(&machine, &queries, *policy))?;
            if let Some(scheduler) = scheduler {
                keeps_limits(&scheduler)?;
            }
            loads.push(load);
        }
    }
    let report = report::Report {
        args,
        threads,
        topology: &topology,
        queries: &queries,
        loads: &loads,
        predicted,
        compared: &compared,
    };
    if let Some(path) = &args.json {
        write_file(path, &format!("{:#}\n", report.json()))?;
    }
    let note = slow_build().map(|note| format!("{note}\n")).unwrap_or_default();
    write!(out, "{}{note}", report.table()).map_err(|error| exec_datafusion_err!("cannot write the table: {error}"))
}

/// Checks that the scheduler has kept its limits, and that no query is left. A log that has lost its beginning is not checked.
fn keeps_limits(scheduler: &Scheduler) -> Result<()> {
    let log = scheduler.log();
    if log.len() < Scheduler::LOGGED {
        let SchedulerConfig { gpu_limits, most_running, .. } = scheduler.config();
        check(&log, gpu_limits, (*most_running).max(1)).map_err(failed)?;
    }
    match scheduler.queries().first() {
        Some(query) => exec_err!("query {} has not ended", query.id.0),
        None => Ok(()),
    }
}

/// Runs each query alone, and compares with what the scheduler expected, of the place where the query was. Returns its last expectations
/// as well.
async fn predictions(
    machine: &Machine,
    queries: &[Query],
    scheduler: &Arc<Scheduler>,
) -> Result<(Predicted, Vec<Demand>)> {
    let session = machine.session("", Some(scheduler)).await?;
    let (mut at_first, mut after_three, mut demands) = (vec![], vec![], vec![]);
    for query in queries {
        for run in 0..4 {
            let took = machine.run(&session, query).await?;
            let log = scheduler.log();
            let demand = log.iter().rev().find_map(|entry| match entry.what {
                What::Arrived(demand) => Some(demand),
                _ => None,
            });
            let demand = demand.ok_or_else(|| exec_datafusion_err!("{} did not come to the scheduler", query.name))?;
            let is_on_gpu = log.iter().any(|entry| match entry.what {
                What::Decided(Decision { id, action, .. }) => id == demand.id && action == Action::Start(Place::Gpu),
                _ => false,
            });
            let predicted = if is_on_gpu { demand.gpu } else { Some(demand.cpu) };
            if run == 3 {
                demands.push(demand);
            }
            let factor = predicted.map_or(f64::NAN, |predicted| (predicted / took).max(took / predicted));
            match run {
                0 => at_first.push(factor),
                3 => after_three.push(factor),
                _ => {}
            }
            tracing::debug!(query = query.name, run, predicted, took, "predicted");
        }
    }
    let of = |factors| median(factors).unwrap_or(f64::NAN);
    Ok((Predicted { at_first: of(at_first), after_three: of(after_three) }, demands))
}
