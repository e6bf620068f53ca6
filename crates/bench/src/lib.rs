//! Overspill's data generators, `overspill datagen …`, and its experiments, `overspill bench …`.

#![deny(missing_docs)]

mod advisor;
mod aggregate;
mod builds;
mod codec;
mod correlated;
mod cpu_partition;
pub mod datagen;
mod engines;
mod estimates;
mod exchange;
mod figures;
mod gpu_join;
mod indexes;
mod kinds;
mod load;
mod member;
mod operator;
mod operator_join;
pub mod peers;
mod process;
mod rank_gpu;
mod report;
mod schedule;
pub mod spill;
mod ssb;
mod suite;
mod threads;
mod tpcds;
mod tpch;

use std::io::Write;

use clap::{Args, Subcommand};
use datafusion::common::{Result, exec_datafusion_err};
use overspill_experiments::{ExperimentArgs, Figure, FigureExperiment};

pub use advisor::AdvisorArgs;
pub use builds::{BuildArgs, BuildKeys};
pub use codec::CodecArgs;
pub use engines::{CompareArgs, EngineArgs};
pub use estimates::{EstimatedSuite, EstimatesArgs};
pub use exchange::{ExchangeArgs, ExchangeRows};
pub use figures::{AllArgs, FigureArgs, FigureName, MeasureArgs, OutputArgs, RankArgs};
pub use indexes::{IndexArgs, Pages};
pub use kinds::KindsArgs;
pub use load::{LoadArgs, LoadPolicy, LoadUsers};
pub use operator_join::OperatorJoinArgs;
pub use schedule::{CpuModel, ScheduleArgs, Shown};
pub use suite::{Numbers, SuiteArgs};

/// The arguments of `overspill bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Which experiment.
    #[command(subcommand)]
    pub experiment: Experiment,
}

/// An experiment.
#[derive(Debug, Clone, Subcommand)]
pub enum Experiment {
    /// A join in ample memory and under a limit it outgrows, beside DuckDB under the same limit, against the speed
    /// of the disk; and the work it takes beside DataFusion's own join when nothing spills
    Spill(spill::SpillArgs),
    /// SQL joins of tables in memory beside DuckDB, Polars and DataFusion, against the speed of the memory
    #[command(after_help = engines::ENVIRONMENT)]
    Peers(peers::PeersArgs),
    /// The 22 queries of TPC-H, with Overspill's joins and DataFusion's, beside DuckDB and Polars
    #[command(after_help = engines::ENVIRONMENT)]
    Tpch(SuiteArgs),
    /// The 99 queries of TPC-DS, with Overspill's operators and DataFusion's, beside DuckDB and Polars
    #[command(after_help = engines::ENVIRONMENT)]
    Tpcds(SuiteArgs),
    /// The 13 queries of the Star Schema Benchmark, with Overspill's operators and DataFusion's, beside DuckDB and Polars
    #[command(after_help = engines::ENVIRONMENT)]
    Ssb(SuiteArgs),
    /// Aggregates of TPC-H's lineitem and orders by keys with 4 to 15 million values (at scale factor 10), beside DuckDB and Polars
    #[command(after_help = engines::ENVIRONMENT)]
    Aggregate(SuiteArgs),
    /// 100 queries of 4 to 12 joins over tables whose columns depend on each other, beside DuckDB and Polars
    #[command(after_help = engines::ENVIRONMENT)]
    Correlated(SuiteArgs),
    /// Estimated rows of filtered tables and joins beside the true ones, by the number of joins, and beside DuckDB's
    #[command(after_help = engines::ENVIRONMENT)]
    Estimates(estimates::EstimatesArgs),
    /// The methods that bring data to a GPU (paper 2, figures 3 and 12)
    Transfer(ExperimentArgs),
    /// A GPU's random access to memory, by the bytes of an access (paper 1, figure 6)
    Granularity(ExperimentArgs),
    /// Latency by the range that is touched, CPU and GPU: where address translation ends (paper 1, figure 7)
    Translation(ExperimentArgs),
    /// The join operator alone, without SQL, on the workloads of the papers, against the bounds of the machine
    Join(OperatorJoinArgs),
    /// Hash tables of the join operator, by the kind of their keys: 32 bits, two columns, texts, far apart
    Build(BuildArgs),
    /// Indexes over sorted keys: lookups a second by their kind, against random reads of the same memory
    Index(IndexArgs),
    /// Cascaded compression of the integers of TPC-H, beside lz4, zstd, Parquet's delta packing and pco (paper 4, table 1)
    Codec(CodecArgs),
    /// Rows between ranks of this process: the shuffle of the repartitioned join, on one level and two (paper 4)
    Exchange(ExchangeArgs),
    /// Which query gets the GPU and which runs on the CPU: policies, in virtual time on random mixes (paper 5)
    Schedule(ScheduleArgs),
    /// Clients that run queries at the same time, with and without a scheduler: throughput, times, fairness, memory
    Load(LoadArgs),
    /// Joins in memory of many sizes and kinds with each strategy: whether `auto` chooses the fastest
    Advisor(AdvisorArgs),
    /// The radix partitioners of the GPU and of the CPU, by fanout (paper 1, figures 4 and 18)
    Partition(ExperimentArgs),
    /// Histograms and prefix sums, CPU and GPU (paper 1, figure 20)
    PrefixSum(ExperimentArgs),
    /// A figure of the papers' evaluations, with the papers' numbers beside those of this machine
    Figure(FigureArgs),
    /// All figures, one after the other
    All(AllArgs),
}

/// Runs an experiment and prints its table on standard output.
///
/// # Errors
/// When a run fails, the engines disagree on the answer, or `--check` is given and a bound is missed.
pub async fn run(args: BenchArgs) -> Result<()> {
    // The experiments wait for other processes, or keep their thread busy.
    tokio::task::spawn_blocking(move || match args.experiment {
        Experiment::Spill(args) => spill::run(&args),
        Experiment::Peers(args) => peers::run(&args),
        Experiment::Tpch(args) => tpch::SUITE.run(&args, &mut std::io::stdout()),
        Experiment::Tpcds(args) => tpcds::SUITE.run(&args, &mut std::io::stdout()),
        Experiment::Ssb(args) => ssb::SUITE.run(&args, &mut std::io::stdout()),
        Experiment::Aggregate(args) => aggregate::SUITE.run(&args, &mut std::io::stdout()),
        Experiment::Correlated(args) => correlated::SUITE.run(&args, &mut std::io::stdout()),
        Experiment::Estimates(args) => estimates::run(&args, &mut std::io::stdout()),
        Experiment::Transfer(args) => figure(FigureExperiment::Transfer, &args),
        Experiment::Granularity(args) => figure(FigureExperiment::Granularity, &args),
        Experiment::Translation(args) => figure(FigureExperiment::Translation, &args),
        Experiment::Join(args) => print(&operator_join::run(&args)?),
        Experiment::Build(args) => print(&builds::run(&args)?),
        Experiment::Index(args) => print(&indexes::run(&args)?),
        Experiment::Codec(args) => codec::run(&args, &mut std::io::stdout()),
        Experiment::Exchange(args) => exchange::run(&args, &mut std::io::stdout()),
        Experiment::Schedule(args) => print(&schedule::run(&args)?),
        Experiment::Load(args) => load::run(&args, &mut std::io::stdout()),
        Experiment::Advisor(args) => advisor::run(&args, &mut std::io::stdout()),
        Experiment::Partition(args) => print(&cpu_partition::run(&args)?),
        Experiment::PrefixSum(args) => figure(FigureExperiment::PrefixSum, &args),
        Experiment::Figure(args) => figures::run(&args, &mut std::io::stdout()),
        Experiment::All(args) => figures::run_all(&args, &mut std::io::stdout()),
    })
    .await
    .map_err(|error| exec_datafusion_err!("The experiment stopped: {error}"))?
}

fn figure(experiment: FigureExperiment, args: &ExperimentArgs) -> Result<()> {
    print(&experiment.run_with(args).map_err(report::failed)?)
}

fn print(figure: &Figure) -> Result<()> {
    write!(std::io::stdout(), "{figure}").map_err(|error| exec_datafusion_err!("cannot write the table: {error}"))
}
