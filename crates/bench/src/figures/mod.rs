//! The papers' figures on this machine: `overspill bench figure NAME` for one, and `overspill bench all` for all.

mod bench;
mod claim;
mod clock;
mod cluster;
mod energy;
mod kernel_times;
mod outcome;
mod paper1;
mod paper2;
mod paper3;
mod paper4;
mod paper5;
mod power;
mod query6;
mod sweep;
mod tables;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill_experiments::FigureExperiment;

pub use bench::MeasureArgs;
use bench::{Bench, bytes_of};
pub use cluster::RankArgs;
use outcome::Outcome;
use paper3::Paper3;
use paper4::Paper4;
use paper5::Paper5;
use sweep::Sweep;
use tables::Sizes;

use crate::cpu_partition;
use crate::report::{failed, slow_build, tell, value_name, write_file};

/// A figure of a paper, or what one measures below joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FigureName {
    /// The methods that bring data to a GPU (paper 2, figures 3 and 12)
    #[value(alias = "paper2-3", alias = "paper2-12")]
    Transfer,
    /// A GPU's random access, by the bytes of an access (paper 1, figure 6)
    #[value(alias = "paper1-6")]
    Granularity,
    /// Latency by the range that is touched (paper 1, figure 7)
    #[value(alias = "paper1-7")]
    Translation,
    /// Radix partitioners by fanout (paper 1, figures 4 and 18)
    #[value(alias = "paper1-4", alias = "paper1-18")]
    Partition,
    /// Histograms and prefix sums, CPU and GPU, and joins with either (paper 1, figure 20)
    #[value(alias = "paper1-20")]
    PrefixSum,
    /// Hash tables in GPU memory, by their size
    HashTable,
    /// Scaling the build side, CPU and GPU
    #[value(name = "paper1-13")]
    Paper1Figure13,
    /// Use of the link
    #[value(name = "paper1-14")]
    Paper1Figure14,
    /// Where the Triton join's time goes
    #[value(name = "paper1-15")]
    Paper1Figure15,
    /// Partitioning by the CPU and by the GPU
    #[value(name = "paper1-16")]
    Paper1Figure16,
    /// Algorithms of the first pass
    #[value(name = "paper1-17")]
    Paper1Figure17,
    /// Scaling the cache in GPU memory
    #[value(name = "paper1-19")]
    Paper1Figure19,
    /// Build-to-probe ratios of the Triton join
    #[value(name = "paper1-21")]
    Paper1Figure21,
    /// Payload attributes
    #[value(name = "paper1-22")]
    Paper1Figure22,
    /// Tuples a second for each watt
    #[value(name = "paper1-23")]
    Paper1Figure23,
    /// Multiprocessors of the GPU
    #[value(name = "paper1-24")]
    Paper1Figure24,
    /// Where the relations lie
    #[value(name = "paper2-13")]
    Paper2Figure13,
    /// Where the hash table lies
    #[value(name = "paper2-14")]
    Paper2Figure14,
    /// TPC-H query 6 by SQL
    #[value(name = "paper2-15")]
    Paper2Figure15,
    /// Scaling the probe side
    #[value(name = "paper2-16")]
    Paper2Figure16,
    /// Scaling the build side beyond GPU memory
    #[value(name = "paper2-17")]
    Paper2Figure17,
    /// Build-to-probe ratios of a join without partitioning
    #[value(name = "paper2-18")]
    Paper2Figure18,
    /// Skew
    #[value(name = "paper2-19")]
    Paper2Figure19,
    /// Join selectivity
    #[value(name = "paper2-20")]
    Paper2Figure20,
    /// CPU and GPU together
    #[value(name = "paper2-21")]
    Paper2Figure21,
    /// Index joins by the size of r, lookups as keys come, CPU and GPU
    #[value(name = "paper3-3")]
    Paper3Figure3,
    /// Translations a lookup, by a model
    #[value(name = "paper3-4")]
    Paper3Figure4,
    /// Index joins by the size of r, all keys partitioned
    #[value(name = "paper3-5")]
    Paper3Figure5,
    /// Translations that partitioning removes, by a model
    #[value(name = "paper3-6")]
    Paper3Figure6,
    /// Index joins by the size of windows
    #[value(name = "paper3-7")]
    Paper3Figure7,
    /// Index joins by skew
    #[value(name = "paper3-8")]
    Paper3Figure8,
    /// Index joins in windows by the size of r, and where they begin to be faster than a hash join
    #[value(name = "paper3-9")]
    Paper3Figure9,
    /// Random keys joined among ranks, as many on each: one level and two
    #[value(name = "paper4-6")]
    Paper4Figure6,
    /// Random keys joined among ranks, by the size of tables: one level and two
    #[value(name = "paper4-7")]
    Paper4Figure7,
    /// Orders and lineitem joined among ranks: one level and two, plain and compressed
    #[value(name = "paper4-8")]
    Paper4Figure8,
    /// Where the time of joining orders and lineitem among ranks goes, plain and compressed
    #[value(name = "paper4-9")]
    Paper4Figure9,
    /// One and four queries at once, CPU and GPU
    #[value(name = "paper5-1")]
    Paper5Figure1,
    /// Six joins and aggregations at once, by who decides where they run
    #[value(name = "paper5-4")]
    Paper5Figure4,
    /// Four queries of TPC-H at once, by who decides where they run
    #[value(name = "paper5-5")]
    Paper5Figure5,
}

/// The arguments of `overspill bench figure`.
#[derive(Debug, Clone, Args)]
pub struct FigureArgs {
    /// Which figure, of paper 1, Triton Join, paper 2, Pump Up the Volume (both by Lutz et al.), paper 3, Efficiently Indexing Large
    /// Data on GPUs (Schmeißer et al.), paper 4, Scaling Joins to a Thousand GPUs (Gao and Sakharnykh), or paper 5, on scheduling
    /// queries (Takahashi and Yamada)
    #[arg(value_enum, value_name = "NAME")]
    pub name: FigureName,

    /// How it is measured, and where it goes.
    #[command(flatten)]
    pub how: AllArgs,
}

/// The arguments of `overspill bench all`, which `overspill bench figure` takes as well.
#[derive(Debug, Clone, Args)]
pub struct AllArgs {
    /// How they are measured.
    #[command(flatten)]
    pub bench: MeasureArgs,

    /// Where they go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Where figures go besides standard output.
#[derive(Debug, Clone, Args)]
pub struct OutputArgs {
    /// Write the figures' numbers and the outcome of each experiment to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the figures into this folder, with the paper's in grey
    #[arg(long, value_name = "DIR")]
    pub plot: Option<PathBuf>,
}

impl FigureName {
    /// Whether its points are joins, each by a strategy.
    fn compares_joins(self) -> bool {
        !matches!(
            self,
            Self::Transfer
                | Self::Granularity
                | Self::Translation
                | Self::Partition
                | Self::PrefixSum
                | Self::HashTable
                | Self::Paper2Figure13
                | Self::Paper2Figure14
                | Self::Paper1Figure23
                | Self::Paper2Figure15
                | Self::Paper3Figure3
                | Self::Paper3Figure4
                | Self::Paper3Figure5
                | Self::Paper3Figure6
                | Self::Paper3Figure7
                | Self::Paper3Figure8
                | Self::Paper3Figure9
                | Self::Paper4Figure6
                | Self::Paper4Figure7
                | Self::Paper4Figure8
                | Self::Paper4Figure9
                | Self::Paper5Figure1
                | Self::Paper5Figure4
                | Self::Paper5Figure5
        )
    }

    /// # Errors
    /// If memory runs out, a device fails, or an answer is wrong.
    fn run(self, bench: &Bench) -> Result<Outcome> {
        if bench.clock.is_some() && !self.compares_joins() {
            return Ok(Outcome::Refused(
                "--clock predicts the time of joins, and this figure measures something else".to_owned(),
            ));
        }
        let scale = bench.scale_below_joins(self == Self::Translation);
        let below =
            |experiment: FigureExperiment| experiment.run(&bench.machine, scale).map(Outcome::of).map_err(failed);
        let sweep: fn(Sizes) -> Sweep = match self {
            Self::Transfer => return below(FigureExperiment::Transfer),
            Self::Granularity => return below(FigureExperiment::Granularity),
            Self::Translation => return below(FigureExperiment::Translation),
            Self::Partition => return cpu_partition::figure(&bench.machine, scale).map(Outcome::of),
            Self::PrefixSum => {
                let joins = run_sweep(bench, paper1::prefix_sum_processor)?;
                return below(FigureExperiment::PrefixSum).map(|below| below.beside("(a), joins", joins));
            }
            Self::HashTable => return below(FigureExperiment::HashTable),
            Self::Paper2Figure13 => return below(FigureExperiment::RelationLocality),
            Self::Paper2Figure14 => return below(FigureExperiment::TableLocality),
            Self::Paper1Figure23 => return power::run(bench),
            Self::Paper2Figure15 => return query6::run(bench),
            Self::Paper1Figure13 => paper1::scaling_the_build_side,
            Self::Paper1Figure14 => paper1::interconnect_usage,
            Self::Paper1Figure15 => paper1::time_breakdown,
            Self::Paper1Figure16 => paper1::partitioning_processor,
            Self::Paper1Figure17 => paper1::partitioning_algorithms,
            Self::Paper1Figure19 => paper1::cache_size,
            Self::Paper1Figure21 => paper1::build_to_probe_ratios,
            Self::Paper1Figure22 => paper1::payload_attributes,
            Self::Paper1Figure24 => paper1::multiprocessors,
            Self::Paper2Figure16 => paper2::scaling_the_probe_side,
            Self::Paper2Figure17 => paper2::scaling_the_build_side,
            Self::Paper2Figure18 => paper2::build_to_probe_ratios,
            Self::Paper2Figure19 => paper2::skew,
            Self::Paper2Figure20 => paper2::selectivity,
            Self::Paper2Figure21 => paper2::cooperative,
            Self::Paper3Figure3 => return Paper3::AsKeysCome.run(bench),
            Self::Paper3Figure4 => return Paper3::Translations.run(bench),
            Self::Paper3Figure5 => return Paper3::Partitioned.run(bench),
            Self::Paper3Figure6 => return Paper3::TranslationsRemoved.run(bench),
            Self::Paper3Figure7 => return Paper3::WindowSize.run(bench),
            Self::Paper3Figure8 => return Paper3::Skew.run(bench),
            Self::Paper3Figure9 => return Paper3::Hardware.run(bench),
            Self::Paper4Figure6 => return Paper4::RandomKeys.run(bench),
            Self::Paper4Figure7 => return Paper4::TableSize.run(bench),
            Self::Paper4Figure8 => return Paper4::Tpch.run(bench),
            Self::Paper4Figure9 => return Paper4::Breakdown.run(bench),
            Self::Paper5Figure1 => return Paper5::Contention.run(bench),
            Self::Paper5Figure4 => return Paper5::Micro.run(bench),
            Self::Paper5Figure5 => return Paper5::Tpch.run(bench),
        };
        run_sweep(bench, sweep)
    }
}

/// Runs joins at the fraction of the paper's sizes that fits the machine.
fn run_sweep(bench: &Bench, sweep: fn(Sizes) -> Sweep) -> Result<Outcome> {
    let measured = |scale| {
        let mut sweep = sweep(Sizes { scale });
        sweep.runs.retain(|run| bench.measures(run.x));
        sweep
    };
    let at_full_size = measured(1.0);
    if at_full_size.runs.is_empty() {
        return Ok(Outcome::Refused("it has no point at what --at names".to_owned()));
    }
    let pairs = || at_full_size.runs.iter().map(|run| &run.pair);
    let tuples = pairs().map(|pair| pair.build_rows + pair.probe_rows).max().unwrap_or(1);
    let scale = bench.scale_for(tuples, pairs().map(bytes_of).max().unwrap_or(1));
    measured(scale).run(bench, scale)
}

/// Runs one figure and writes it.
///
/// # Errors
/// If the figure is refused on this machine, fails, or a file cannot be written.
pub(crate) fn run(args: &FigureArgs, out: &mut dyn Write) -> Result<()> {
    let outcome = args.name.run(&Bench::new(&args.how.bench)?)?;
    // One rank of an MPI job speaks for all.
    if outcome.is_silent() {
        return Ok(());
    }
    let name = value_name(&args.name);
    print(&outcome, out)?;
    args.how.output.write(&[(name.clone(), &outcome)])?;
    if let Outcome::Refused(reason) | Outcome::Failed(reason) = outcome {
        return exec_err!("The figure {name} cannot be measured here: {reason}");
    }
    Ok(())
}

/// Runs all figures, and reports the outcome of each at the end.
///
/// # Errors
/// If one fails, or a file cannot be written.
pub(crate) fn run_all(args: &AllArgs, out: &mut dyn Write) -> Result<()> {
    // A process starts MPI once, and each figure of ranks would.
    if args.bench.ranks.are_of_mpi() {
        return exec_err!(
            "All figures cannot be measured by an MPI job: start one of paper 4, such as mpirun overspill bench figure paper4-6."
        );
    }
    let bench = Bench::new(&args.bench)?;
    let mut outcomes = Vec::new();
    for name in FigureName::value_variants() {
        tell(&value_name(name));
        let begin = Instant::now();
        let outcome = name.run(&bench).unwrap_or_else(|error| Outcome::Failed(error.message().into_owned()));
        print(&outcome, out)?;
        outcomes.push((value_name(name), outcome, begin.elapsed().as_secs_f64()));
        // Write after each figure, so that results are kept if the program is stopped.
        let so_far: Vec<_> = outcomes.iter().map(|(name, outcome, _)| (name.clone(), outcome)).collect();
        args.output.write(&so_far)?;
    }
    let line = |(name, outcome, seconds): &(String, Outcome, f64)| format!("{name:<12} {seconds:>6.1} s  {outcome}\n");
    write(out, &outcomes.iter().map(line).collect::<String>())?;
    let failed: Vec<_> = { outcomes.iter() }
        .filter(|(_, outcome, _)| matches!(outcome, Outcome::Failed(_)))
        .map(|(name, _, _)| name.as_str())
        .collect();
    if !failed.is_empty() {
        return exec_err!("Experiments failed: {}", failed.join(", "));
    }
    Ok(())
}

fn print(outcome: &Outcome, out: &mut dyn Write) -> Result<()> {
    let mut text: String = outcome.figures().iter().map(|figure| format!("{figure}\n")).collect();
    if let Some(line) = slow_build().filter(|_| !text.is_empty()) {
        text += &format!("{line}\n\n");
    }
    write(out, &text)
}

fn write(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes()).map_err(|error| exec_datafusion_err!("cannot write the table: {error}"))
}

impl OutputArgs {
    fn write(&self, outcomes: &[(String, &Outcome)]) -> Result<()> {
        if let Some(path) = &self.json {
            let experiments: Result<Vec<_>, _> = outcomes.iter().map(|(name, outcome)| outcome.json(name)).collect();
            let json = experiments.and_then(|experiments| serde_json::to_string_pretty(&experiments));
            let json = json.map_err(|error| exec_datafusion_err!("The figures cannot be written as JSON: {error}"))?;
            write_file(path, &format!("{json}\n"))?;
        }
        if let Some(folder) = &self.plot {
            std::fs::create_dir_all(folder)
                .map_err(|error| exec_datafusion_err!("The folder '{}' cannot be made: {error}", folder.display()))?;
            let Some((name, outcome)) = outcomes.last() else { return Ok(()) };
            for (number, figure) in outcome.figures().iter().enumerate() {
                let panel = if number == 0 { String::new() } else { format!("-{}", number + 1) };
                let svg = figure.to_svg().map_err(failed)?;
                write_file(&folder.join(format!("{name}{panel}.svg")), &svg)?;
            }
        }
        Ok(())
    }
}
