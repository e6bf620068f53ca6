//! The machine that figures are measured on: processors, a GPU or its stand-in, and the fraction of the papers' sizes that
//! fits.

use std::cell::{OnceCell, RefCell};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use bytesize::ByteSize;
use clap::Args;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill::DeviceKind;
use overspill_experiments::{DeviceArgs, Figure, Machine, device_parser};
use overspill_gpu_join::Gpu;
use overspill_machine::driver::VirtualClock;
use overspill_machine::measure::{CpuEffort, MemoryBounds, measure_bounds};
use serde_json::Value;

use super::clock::Clock;
use super::cluster::RankArgs;
use super::energy::{GpuEnergy, NVML};
use crate::datagen::{TablePair, check_scale};
use crate::gpu_join::open;
use crate::operator::MEMORY_PER_TABLES;
use crate::report::{failed, not_written, size};

/// The GPU memory of the papers' machines.
const PAPER_GPU_MEMORY: u64 = 16 << 30;

/// The maximum number of tuples of both tables in a join of toy size, and in one on the emulated device.
const TOY_TUPLES: f64 = (1 << 15) as f64;
const EMULATED_TUPLES: f64 = (1 << 18) as f64;

/// The toy scale of experiments other than joins.
const TOY_SCALE: f64 = 1.0 / 4096.0;
const TOY_SCALE_OF_LATENCY: f64 = 1.0 / 256.0;

/// Answers are checked with a map from keys to payloads, which takes this many times the memory of the tables.
const MEMORY_FOR_ANSWERS: u64 = 2;

/// How figures are measured.
#[derive(Debug, Clone, Args)]
pub struct MeasureArgs {
    /// What the GPU's lines are measured on; without one they are refused
    #[arg(long, value_parser = device_parser(), default_value = "gpu")]
    pub device: DeviceKind,

    /// Run each strategy once on small tables, to check that all of them run and give right answers
    #[arg(long)]
    pub quick: bool,

    /// The part of the paper's sizes [default: what fits this machine, little of it on the emulated device and among ranks]
    #[arg(long, value_name = "F", conflicts_with = "quick")]
    pub scale: Option<f64>,

    /// The most GPU memory that joins use [default: that of the papers' GPUs, 16 GiB, times the scale]
    #[arg(long, value_name = "SIZE")]
    pub gpu_memory_limit: Option<ByteSize>,

    /// The number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,

    /// The number of runs of each strategy; the table shows medians
    #[arg(long, default_value = "3", value_name = "N")]
    pub runs: NonZeroUsize,

    /// Predict how long each join of the paper's size would take on this machine of the advisor, by cause: a model, fed by what the
    /// emulated device counts
    #[arg(long, value_name = "MACHINE")]
    pub clock: Option<String>,

    /// Measure only the points of joins at this x of the figure, which may be given several times [default: all]
    #[arg(long, value_name = "X")]
    pub at: Vec<f64>,

    /// Write each point of a join to this file as soon as it is measured, as a line of JSON
    #[arg(long, value_name = "FILE")]
    pub points: Option<PathBuf>,

    /// The ranks of figures that have some.
    #[command(flatten)]
    pub ranks: RankArgs,
}

impl MeasureArgs {
    fn device(&self) -> DeviceArgs {
        DeviceArgs { device: self.device, gpu: 0, gpu_memory_limit: self.gpu_memory_limit, emulated_driver: None }
    }
}

/// The machine, and its measurements in this run.
#[derive(Debug)]
pub(super) struct Bench {
    args: MeasureArgs,
    pub(super) machine: Machine,
    /// The library that reports the energy of GPUs.
    nvml: OsString,
    pub(super) threads: usize,
    bounds: OnceCell<MemoryBounds>,
    link_rate: OnceCell<Option<f64>>,
    /// The GPU that was opened last, with its memory limit.
    gpu: RefCell<Option<(u64, Arc<Gpu>)>>,
    /// The machine whose time is predicted.
    pub(super) clock: Option<Clock>,
    /// Where points go as soon as they are measured.
    points: Option<(PathBuf, File)>,
}

impl Bench {
    /// # Errors
    /// If the scale is invalid, or the emulated device was requested and is not available.
    pub(super) fn new(args: &MeasureArgs) -> Result<Self> {
        if let Some(scale) = args.scale {
            check_scale(scale, 1.0)?;
        }
        if args.clock.is_some() && args.device != DeviceKind::Emulated {
            return exec_err!(
                "--clock predicts the time of joins from what the emulated device counts; add --device emulated."
            );
        }
        let clock = args.clock.as_deref().map(Clock::new).transpose()?;
        let device = args.device();
        let nvml = match args.device {
            DeviceKind::Emulated => device.library().into(),
            _ => NVML.into(),
        };
        let points = { args.points.as_deref() }
            .map(|path| {
                File::create(path).map_err(|error| not_written(path, &error)).map(|file| (path.to_owned(), file))
            })
            .transpose()?;
        let machine = device.open().map_err(failed)?;
        if clock.is_some() && VirtualClock::now().is_none() {
            return exec_err!(
                "The library of the emulated device is of another version: it has no virtual clock for --clock."
            );
        }
        let threads = args.threads.map_or(machine.topology.cpu.threads.max(1), NonZeroUsize::get);
        Ok(Self {
            args: args.clone(),
            machine,
            nvml,
            threads,
            bounds: OnceCell::new(),
            link_rate: OnceCell::new(),
            gpu: RefCell::new(None),
            clock,
            points,
        })
    }

    /// Writes a point to the file of `--points`, so that it is kept however the program ends.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn keep(&self, point: &Value) -> Result<()> {
        let Some((path, file)) = &self.points else { return Ok(()) };
        writeln!(&*file, "{point}").map_err(|error| not_written(path, &error))
    }

    pub(super) fn device(&self) -> DeviceKind {
        self.args.device
    }

    /// The arguments that open the device, for ranks that each open one.
    pub(super) fn device_args(&self) -> DeviceArgs {
        self.args.device()
    }

    /// Whether the points at an x are measured.
    pub(super) fn measures(&self, x: f64) -> bool {
        self.args.at.is_empty() || self.args.at.contains(&x)
    }

    /// The ranks that were asked for.
    pub(super) fn ranks(&self) -> &RankArgs {
        &self.args.ranks
    }

    pub(super) fn is_emulated(&self) -> bool {
        self.machine.is_emulated()
    }

    /// Whether joins are so small that only their answers are meaningful.
    pub(super) fn is_toy(&self) -> bool {
        self.args.quick
    }

    /// The scale of experiments other than joins. Latency has its own, as it is measured from ranges of 1 MiB on.
    pub(super) fn scale_below_joins(&self, is_latency: bool) -> Option<f64> {
        match (self.args.quick, is_latency) {
            (true, false) => Some(TOY_SCALE),
            (true, true) => Some(TOY_SCALE_OF_LATENCY),
            (false, _) => self.args.scale,
        }
    }

    /// The scale of joins whose largest pair of tables has `tuples` tuples and `bytes` bytes at the paper's size.
    pub(super) fn scale_for(&self, tuples: u64, bytes: u64) -> f64 {
        if self.args.quick {
            return (TOY_TUPLES / tuples as f64).min(1.0);
        }
        if let Some(scale) = self.args.scale {
            return scale;
        }
        let fits = self.machine.topology.memory.bytes.map_or(1.0, |memory| {
            memory as f64 / (bytes.saturating_mul(MEMORY_PER_TABLES + MEMORY_FOR_ANSWERS)) as f64
        });
        let most = if self.is_emulated() { EMULATED_TUPLES / tuples as f64 } else { 1.0 };
        // Powers of two are easier to read.
        fits.min(most).min(1.0).log2().floor().exp2()
    }

    /// As `scale_for`, with at most `most` tuples unless a scale was given.
    pub(super) fn scale_within(&self, tuples: u64, bytes: u64, most: f64) -> f64 {
        let scale = self.scale_for(tuples, bytes);
        if self.args.scale.is_some() { scale } else { scale.min((most / tuples as f64).log2().floor().exp2()) }
    }

    /// The number of runs of a join, including the first.
    pub(super) fn runs_of(&self, on_gpu: bool) -> usize {
        if self.args.quick || (on_gpu && self.is_emulated()) {
            // The first join maps and registers memory for the later ones. Of these, the join with the fewest charges counts.
            return if on_gpu && self.clock.is_some() { 3 } else { 1 };
        }
        self.args.runs.get() + 1
    }

    /// Refuses tables that do not fit memory together with the memory of a join.
    pub(super) fn check_memory(&self, pair: &TablePair) -> Result<()> {
        self.check_fits(bytes_of(pair))
    }

    /// As `check_memory`, for tables of `bytes` bytes.
    pub(super) fn check_fits(&self, bytes: u64) -> Result<()> {
        match self.machine.topology.memory.bytes {
            Some(memory) if bytes.saturating_mul(MEMORY_PER_TABLES + MEMORY_FOR_ANSWERS) > memory => exec_err!(
                "Tables of {} and their join do not fit the {} of this machine; choose a smaller --scale.",
                size(bytes),
                size(memory)
            ),
            _ => Ok(()),
        }
    }

    /// The GPU for joins at a scale, or why there is none.
    pub(super) fn gpu(&self, scale: f64) -> Result<Arc<Gpu>, String> {
        let memory = match &self.machine.gpu {
            Ok(gpu) => gpu.device().properties().memory,
            Err(reason) => return Err(format!("it needs a GPU: {reason}")),
        };
        let asked = self.args.gpu_memory_limit.map(|limit| limit.as_u64());
        let scaled = ((PAPER_GPU_MEMORY as f64 * scale) as u64).max(Gpu::MIN_MEMORY);
        let limit = asked.unwrap_or(scaled.min(memory / 10 * 9));
        let mut opened = self.gpu.borrow_mut();
        if let Some((_, gpu)) = opened.as_ref().filter(|(other, _)| *other == limit) {
            return Ok(Arc::clone(gpu));
        }
        let gpu = open(self.args.device, limit).map_err(|error| error.message().into_owned())?;
        let gpu = gpu.ok_or_else(|| "it needs a GPU: name one by --device".to_owned())?;
        *opened = Some((limit, Arc::clone(&gpu)));
        Ok(gpu)
    }

    /// The GPU's energy counter, or why there is none.
    pub(super) fn gpu_energy(&self) -> Result<GpuEnergy, String> {
        let gpu = self.machine.gpu.as_ref().map_err(|reason| format!("it needs a GPU: {reason}"))?;
        GpuEnergy::find(&self.nvml, &gpu.device().properties().pci_bus_id)
    }

    /// Bytes per second that all processors read from their memory.
    pub(super) fn read_rate(&self) -> Result<f64> {
        Ok(self.bounds()?.read)
    }

    fn bounds(&self) -> Result<&MemoryBounds> {
        if let Some(bounds) = self.bounds.get() {
            return Ok(bounds);
        }
        let usual = CpuEffort::for_machine(&self.machine.topology);
        let quick = CpuEffort { array_bytes: 64 << 20, runs: 1, reads: 1 << 18, ..usual };
        let measured = measure_bounds(&self.machine.topology, if self.args.quick { quick } else { usual })
            .map_err(|error| exec_datafusion_err!("The machine's memory could not be measured: {error}"))?;
        Ok(self.bounds.get_or_init(|| measured))
    }

    /// Bounds in millions of tuples per second: random reads with one per tuple, partitioning passes, and the link, 0 if
    /// there is none.
    pub(super) fn bounds_of(&self, pair: &TablePair) -> Result<[f64; 3]> {
        let bounds = self.bounds()?;
        let tuple = bytes_of(pair) as f64 / (pair.build_rows + pair.probe_rows) as f64;
        let passes = 1.0 / (tuple / bounds.copy + tuple / bounds.read);
        let link = self.link_rate().map_or(0.0, |rate| rate / tuple);
        Ok([bounds.random_reads, passes, link].map(|rate| rate / 1e6))
    }

    /// Bytes per second that the GPU reads from CPU memory; `None` without a GPU, or if it cannot be measured.
    pub(super) fn link_rate(&self) -> Option<f64> {
        const BYTES: usize = 1 << 30;
        *self.link_rate.get_or_init(|| {
            let gpu = self.machine.gpu.as_ref().ok().filter(|gpu| !gpu.emulated)?;
            gpu.link_rate(BYTES).ok()
        })
    }

    /// A figure without lines that describes the machine on one line, with the scale and the limit of GPU memory.
    pub(super) fn figure(&self, scale: f64) -> Figure {
        let memory = |gpu: Arc<Gpu>| format!(", {} of GPU memory", size(gpu.device().memory_limit()));
        let gpu = self.gpu(scale).map_or_else(|_| String::new(), memory);
        let (machine, used) = (self.machine.describe(), self.threads);
        let machine = format!("{machine}; {used} used; {scale:.3e} of the paper's tuples{gpu}");
        Figure { machine, emulated: self.is_emulated(), ..Figure::default() }
    }
}

pub(super) fn bytes_of(pair: &TablePair) -> u64 {
    let column = u64::from(pair.tuple / 2);
    let side = |rows: u64, payloads: usize| rows * column * (1 + payloads as u64);
    side(pair.build_rows, pair.build_payloads) + side(pair.probe_rows, pair.probe_payloads)
}
