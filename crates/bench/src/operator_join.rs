//! The experiment `overspill bench join`: the join operator alone, without SQL, against the bounds of the machine.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use bytesize::ByteSize;
use clap::Args;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill::{DeviceKind, Strategy};
use overspill_experiments::{Axis, Figure, SeriesSource, device_parser, named_parser};
use overspill_gpu_join::{DeviceRequest, Gpu, LinkCompression, LinkCompressor};
use overspill_join::radix::ProbeRegions;
use overspill_machine::measure::{CpuEffort, measure_bounds};
use overspill_machine::topology::Topology;

use crate::datagen::{TablePair, Workload, check_scale};
use crate::gpu_join::{DeviceCounts, open, prefix_sum, request};
use crate::operator::{How, MEMORY_PER_TABLES, Seconds, Tables};
use crate::report::{failed, median, size};

/// The strategies of the operator alone, which does not spill, those of the CPU first.
static STRATEGIES: LazyLock<Vec<Strategy>> =
    LazyLock::new(|| Strategy::ALL.into_iter().filter(|strategy| *strategy != Strategy::Hybrid).collect());

/// The arguments of `overspill bench join`.
#[derive(Debug, Clone, Args)]
pub struct OperatorJoinArgs {
    /// Which workload of the papers
    #[arg(long, value_enum, default_value = "A")]
    pub workload: Workload,

    /// Shrinks both tables by this factor; a workload of the papers has up to 4096 million tuples
    #[arg(long, default_value_t = 1.0 / 32.0, value_name = "F")]
    pub scale: f64,

    /// How the join runs [default: each way in turn, those of a GPU if --device names one]
    #[arg(long, value_parser = named_parser(&STRATEGIES, Strategy::name, Strategy::describe), value_name = "NAME")]
    pub strategy: Option<Strategy>,

    /// What the strategies of a GPU run on
    #[arg(long, value_parser = device_parser(), default_value = "cpu")]
    pub device: DeviceKind,

    /// The most GPU memory that they use [default: nine tenths of it]
    #[arg(long, value_name = "SIZE")]
    pub gpu_memory_limit: Option<ByteSize>,

    /// Compress what crosses the link for gpu_no_partition and cpu_partitioned, if that makes it smaller
    #[arg(long)]
    pub compress_link: bool,

    /// The number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<std::num::NonZeroUsize>,

    /// The number of runs of each strategy; the table shows medians
    #[arg(long, default_value = "3", value_name = "N")]
    pub runs: std::num::NonZeroUsize,

    /// Spread the keys over 63 bits; without it they are 1, 2, 3 …
    #[arg(long)]
    pub sparse: bool,

    /// The exponent of the Zipf distribution of the keys of s; 0 draws them uniformly
    #[arg(long, default_value_t = 0.0, value_name = "Z")]
    pub zipf: f64,

    /// The share of the rows of s that have a partner in r, from 0 to 1
    #[arg(long, default_value_t = 1.0, value_name = "M")]
    pub match_rate: f64,

    /// Copy pairs from the GPU and sum their payloads on the CPU; without it kernels count and sum them, as in the papers
    #[arg(long)]
    pub pairs: bool,

    /// Write the figure's numbers to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the figure to this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

impl OperatorJoinArgs {
    /// The tables to join. Sparse keys have 8 bytes in every workload.
    fn tables(&self) -> TablePair {
        let pair = TablePair::of_workload(self.workload, self.scale);
        let tuple = if self.sparse { 16 } else { pair.tuple };
        TablePair { zipf: self.zipf, match_rate: self.match_rate, sparse: self.sparse, tuple, ..pair }
    }
}

/// Joins two tables in memory and returns the figure.
///
/// # Errors
/// If an argument is out of range, memory runs out, or an answer is wrong.
pub(crate) fn run(args: &OperatorJoinArgs) -> Result<Figure> {
    check_scale(args.scale, 1.0)?;
    // Before detecting GPUs, as that would choose NVIDIA's driver.
    let gpu = open(args.device, args.gpu_memory_limit.map_or(0, |limit| limit.as_u64()))?;
    let topology = Topology::of_this_machine();
    let threads = args.threads.map_or(topology.cpu.threads.max(1), std::num::NonZeroUsize::get);
    let pair = args.tables();
    let bytes = (pair.build_rows + pair.probe_rows) * u64::from(pair.tuple);
    if let Some(memory) = topology.memory.bytes.filter(|memory| bytes.saturating_mul(MEMORY_PER_TABLES) > *memory) {
        return exec_err!(
            "Tables of {} and their join do not fit the {} of this machine; choose a smaller --scale than {}.",
            size(bytes),
            size(memory),
            args.scale
        );
    }
    let tables = Tables::generate(&pair, threads)?;
    let possible = STRATEGIES.iter().copied().filter(|strategy| gpu.is_some() || !strategy.uses_gpu());
    let strategies = args.strategy.map_or_else(|| possible.collect(), |strategy| vec![strategy]);
    let (measured, notes) = measure(args, gpu.as_ref(), &tables, &strategies, threads)?;
    let mut figure = Figure {
        name: "join",
        title: "The join operator alone",
        paper: "paper 1, section 6.1; paper 2, section 7.1",
        machine: format!(
            "{}, {threads} threads; {} x {} tuples of {} bytes{}{}",
            topology.cpu.model.as_deref().unwrap_or("a CPU of unknown model"),
            tables.build_rows,
            tables.probe_rows,
            pair.tuple,
            if args.sparse { ", sparse keys" } else { ", dense keys" },
            if args.zipf > 0.0 { format!(", Zipf {}", args.zipf) } else { String::new() }
        ) + match args.device {
            DeviceKind::Emulated => "; NO GPU: the emulated device, whose speed means nothing",
            DeviceKind::Gpu | DeviceKind::Cpu => "",
        },
        emulated: args.device == DeviceKind::Emulated,
        x: Axis::named("strategy", strategies.iter().map(|strategy| strategy.name())),
        y: Axis::linear("million tuples a second of both sides"),
        series: vec![],
        notes,
    };
    compare(&mut figure, &topology, &tables, bytes as f64, &strategies, &measured)?;
    figure.write(args.json.as_deref(), args.svg.as_deref()).map_err(failed)?;
    Ok(figure)
}

/// Runs each strategy, and returns the seconds of its runs, and notes on what strategies did.
fn measure(
    args: &OperatorJoinArgs,
    gpu: Option<&Arc<Gpu>>,
    tables: &Tables,
    strategies: &[Strategy],
    threads: usize,
) -> Result<(Vec<Vec<Seconds>>, Vec<String>)> {
    let mut measured: Vec<Vec<Seconds>> = vec![vec![]; strategies.len()];
    let expected = tables.expected(threads)?;
    let mut notes = vec![];
    // One extra run: the first run faults in memory for the others.
    for run in 0..=args.runs.get() {
        for (strategy, measured) in strategies.iter().zip(&mut measured) {
            let region = (*strategy == Strategy::Radix).then(|| ProbeRegions::of_this_machine(0));
            let counts = Arc::new(DeviceCounts::default());
            let device = match (strategy.uses_gpu(), gpu) {
                (false, _) => None,
                (true, None) => {
                    return exec_err!("The strategy {} runs on a GPU; name one by --device.", strategy.name());
                }
                (true, Some(gpu)) => {
                    let when = if args.compress_link { LinkCompression::Always } else { LinkCompression::Off };
                    let compressor = Arc::new(LinkCompressor::new(when));
                    let request = request(gpu, *strategy, prefix_sum(args.device, threads, gpu), &counts);
                    Some(DeviceRequest { compressor, ..request })
                }
            };
            let is_on_gpu = device.is_some();
            let joined = tables
                .join(threads, How { probe_regions: region, device, wants_pairs: args.pairs, ..How::default() })?;
            joined.check(expected)?;
            if run > 0 {
                measured.push(joined.seconds);
            } else if is_on_gpu {
                notes.push(format!(
                    "{}: {}",
                    strategy.name(),
                    counts.get().describe(joined.seconds.build + joined.seconds.probe)
                ));
            } else if region.is_some() && !joined.is_radix {
                notes.push(
                    "radix: the build side fits a core's cache, or has other keys than it takes: as no_partition"
                        .to_owned(),
                );
            }
        }
    }
    Ok((measured, notes))
}

/// Draws the rates beside the bounds of the machine.
fn compare(
    figure: &mut Figure,
    topology: &Topology,
    tables: &Tables,
    bytes: f64,
    strategies: &[Strategy],
    measured: &[Vec<Seconds>],
) -> Result<()> {
    let bounds = measure_bounds(topology, CpuEffort::for_machine(topology))
        .map_err(|error| exec_datafusion_err!("The machine's memory could not be measured: {error}"))?;
    let tuples = (tables.build_rows + tables.probe_rows) as f64;
    let per_second = |seconds: f64| tuples / seconds / 1e6;
    let places = || (0..strategies.len()).map(|place| place as f64);
    let random = tuples / bounds.random_reads;
    // Each tuple is read, written to its partition and read there.
    let passes = bytes / bounds.copy + bytes / bounds.read;
    figure.add(SeriesSource::Bound, "a random read a tuple", places().map(|x| (x, per_second(random))).collect());
    figure.add(SeriesSource::Bound, "partitioning passes", places().map(|x| (x, per_second(passes))).collect());
    let typical =
        |of: &dyn Fn(&Seconds) -> f64, runs: &[Seconds]| median(runs.iter().map(of).collect()).unwrap_or(f64::NAN);
    let line = |of: &dyn Fn(&Seconds) -> f64| -> Vec<(f64, f64)> {
        places().zip(measured).map(|(x, runs)| (x, per_second(typical(of, runs)))).collect()
    };
    figure.add(SeriesSource::Measured, "build and probe", line(&|run| run.build + run.probe));
    for (strategy, runs) in strategies.iter().zip(measured) {
        let (build, probe) = (typical(&|run| run.build, runs), typical(&|run| run.probe, runs));
        let whole = typical(&|run| run.build + run.probe, runs);
        figure.notes.push(format!(
            "{}: build {build:.3} s, probe {probe:.3} s; {:.2} x the bound of random reads ({random:.3} s), {:.2} x that of \
             partitioning passes ({passes:.3} s)",
            strategy.name(),
            whole / random,
            whole / passes
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_strategies_are_measured_beside_the_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let args =
            OperatorJoinArgs { json: Some(folder.path().join("join.json")), ..arguments(Workload::C, 1.0 / 4096.0) };
        let figure = run(&args).unwrap();
        assert_eq!(figure.x.names, ["no_partition", "radix"]);
        assert!(figure.machine.contains("250000 x 250000 tuples of 16 bytes, sparse keys"), "{}", figure.machine);
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(args.json.unwrap()).unwrap()).unwrap();
        for (series, source) in json["series"].as_array().unwrap().iter().zip(["bound", "bound", "measured"]) {
            assert_eq!(series["source"], source);
            assert!(series["points"].as_array().unwrap().iter().all(|point| point[1].as_f64().unwrap() > 0.0));
        }
    }

    #[test]
    fn strategies_of_a_gpu_want_one() {
        let strategy = Some(Strategy::Triton);
        let error =
            run(&OperatorJoinArgs { strategy, ..arguments(Workload::C, 1.0 / 65536.0) }).unwrap_err().to_string();
        assert!(error.contains("The strategy triton runs on a GPU; name one by --device."), "{error}");
    }

    #[test]
    fn tables_beyond_the_memory_are_refused() {
        let error = run(&arguments(Workload::T, 1.0)).unwrap_err().to_string();
        assert!(error.contains("choose a smaller --scale than 1"), "{error}");
    }

    fn arguments(workload: Workload, scale: f64) -> OperatorJoinArgs {
        OperatorJoinArgs {
            workload,
            scale,
            strategy: None,
            threads: std::num::NonZeroUsize::new(2),
            runs: std::num::NonZeroUsize::MIN,
            device: DeviceKind::Cpu,
            gpu_memory_limit: None,
            compress_link: false,
            sparse: true,
            zipf: 0.0,
            match_rate: 1.0,
            pairs: false,
            json: None,
            svg: None,
        }
    }
}
