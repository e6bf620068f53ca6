//! The device that an experiment runs on.

use std::path::PathBuf;
use std::sync::Arc;

use bytesize::ByteSize;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use overspill_kernels::{Kernels, MemoryAccess};
use overspill_machine::DeviceKind;
use overspill_machine::driver::{Driver, DriverKind, Stream};
use overspill_machine::memory::{HostBuffer, PageSize};
use overspill_machine::topology::Topology;

use crate::Result;
use crate::figure::Figure;

/// Parses a device by its name.
pub fn device_parser() -> impl TypedValueParser<Value = DeviceKind> {
    named_parser(&DeviceKind::ALL, DeviceKind::name, |kind| match kind {
        DeviceKind::Cpu => "The CPU alone",
        DeviceKind::Gpu => "A GPU, if there is one",
        DeviceKind::Emulated => {
            "No GPU: the stand-in for its driver, which runs kernels on the CPU. Its speed means nothing"
        }
    })
}

/// Parses one of `values` by its name, and lists them with their descriptions in the help.
pub fn named_parser<T: Copy + Send + Sync + 'static>(
    values: &'static [T],
    name: fn(T) -> &'static str,
    describe: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let possible = values.iter().map(move |value| PossibleValue::new(name(*value)).help(describe(*value)));
    PossibleValuesParser::new(possible)
        .try_map(move |text| values.iter().copied().find(|value| name(*value) == text).ok_or("not a known name"))
}

/// The arguments that choose a device.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    /// What the GPU's lines are measured on
    #[arg(long, value_parser = device_parser(), default_value = "gpu")]
    pub device: DeviceKind,

    /// The number of the GPU
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub gpu: usize,

    /// The most GPU memory that is used [default: nine tenths of it]
    #[arg(long, value_name = "SIZE")]
    pub gpu_memory_limit: Option<ByteSize>,

    /// The stand-in's library [default: that of the environment variable OVERSPILL_EMULATED_DRIVER, else beside this program]
    #[arg(long, value_name = "PATH")]
    pub emulated_driver: Option<PathBuf>,
}

/// A GPU with the kernels loaded.
#[derive(Debug)]
pub struct Gpu {
    /// The kernels.
    pub kernels: Kernels,
    /// A stream of its own.
    pub stream: Stream,
    /// Whether the device is the stand-in.
    pub emulated: bool,
}

/// The share of the data that the emulated device gets, as it runs thread by thread on the CPU.
const EMULATED_SCALE: f64 = 1.0 / 4096.0;

/// The machine that experiments run on.
#[derive(Debug)]
pub struct Machine {
    /// The machine's hardware.
    pub topology: Topology,
    /// The GPU, or why the machine has none.
    pub gpu: std::result::Result<Gpu, String>,
}

/// The environment variable with the path of the stand-in's library, as joins read it.
const EMULATED_DRIVER: &str = "OVERSPILL_EMULATED_DRIVER";

/// The file name of the stand-in's library.
const EMULATED_LIBRARY: &str = "liboverspill_emulated_driver.so";

impl DeviceArgs {
    /// Opens the device. A missing GPU is recorded in the result and is no error, as the CPU's lines can still be measured.
    ///
    /// # Errors
    /// If the stand-in was asked for and cannot be loaded, or the kernels do not run on the device.
    pub fn open(&self) -> Result<Machine> {
        let gpu = match self.device {
            DeviceKind::Cpu => Err("left out by --device cpu".to_owned()),
            DeviceKind::Gpu => match Driver::nvidia() {
                Ok(driver) => Ok(self.load(driver)?),
                Err(reason) => Err(reason.to_string()),
            },
            DeviceKind::Emulated => Ok(self.load(Driver::emulated(&self.library())?)?),
        };
        // Only after the driver was chosen: looking for GPUs would choose NVIDIA's.
        let topology = Topology::of_this_machine();
        Ok(Machine { topology, gpu })
    }

    /// The path of the stand-in's library.
    pub fn library(&self) -> PathBuf {
        let of_environment = || std::env::var_os(EMULATED_DRIVER).map(PathBuf::from);
        self.emulated_driver.clone().or_else(of_environment).unwrap_or_else(|| {
            let program = std::env::current_exe().unwrap_or_default();
            program.with_file_name(EMULATED_LIBRARY)
        })
    }

    fn load(&self, driver: &'static Driver) -> Result<Gpu> {
        let limit = match self.gpu_memory_limit {
            Some(limit) => limit.as_u64(),
            None => driver.device_memory(self.gpu)? / 10 * 9,
        };
        let device = driver.device(self.gpu, limit)?;
        let kernels = Kernels::load(&device)?;
        let stream = Stream::new(&device)?;
        Ok(Gpu { kernels, stream, emulated: driver.kind() == DriverKind::Emulated })
    }
}

impl Machine {
    /// Describes the processors and the GPU on one line, which says if the GPU is emulated.
    pub fn describe(&self) -> String {
        let cpu = self.topology.cpu.model.as_deref().unwrap_or("a CPU of unknown model");
        let threads = self.topology.cpu.threads;
        match &self.gpu {
            Ok(gpu) if gpu.emulated => {
                format!("{cpu}, {threads} threads; NO GPU: the emulated device, whose speed means nothing")
            }
            Ok(gpu) => format!("{cpu}, {threads} threads; {}", gpu.kernels.device().properties().name),
            Err(reason) => format!("{cpu}, {threads} threads; no GPU: {reason}"),
        }
    }

    /// A figure of this machine that has no name, axes and lines yet.
    pub(crate) fn figure(&self) -> Figure {
        Figure { machine: self.describe(), emulated: self.is_emulated(), ..Figure::default() }
    }

    /// Whether kernels run on the CPU, so that sizes should be small.
    pub fn is_emulated(&self) -> bool {
        self.gpu.as_ref().is_ok_and(|gpu| gpu.emulated)
    }

    /// The scale of an experiment: `asked` if given, a small part for an emulated device, or all data.
    pub fn scale(&self, asked: Option<f64>) -> f64 {
        asked.unwrap_or(if self.is_emulated() { EMULATED_SCALE } else { 1.0 })
    }

    /// The number of runs of a measurement; the best run counts. An emulated device runs once, as it is not measured.
    pub(crate) fn runs(&self) -> usize {
        if self.is_emulated() { 1 } else { 3 }
    }
}

/// Scales a size in bytes to a positive multiple of 64 KiB.
pub(crate) fn scaled(bytes: u64, scale: f64) -> u64 {
    const UNIT: u64 = 64 << 10;
    ((bytes as f64 * scale) as u64).next_multiple_of(UNIT).max(UNIT)
}

impl Gpu {
    /// Bytes per second that a kernel reads sequentially from an array of `bytes` bytes in CPU memory; the best of three
    /// runs.
    ///
    /// # Errors
    /// If there is no memory for it, or the device is lost.
    pub fn link_rate(&self, bytes: usize) -> Result<f64> {
        let column = HostBuffer::pinned(self.device(), bytes, PageSize::Huge)?;
        let mut access = MemoryAccess::new(&self.kernels)?;
        let mut best = 0.0f64;
        for _ in 0..3 {
            best = best.max(bytes as f64 / access.timed_read(&self.stream, column.view(self.device())?)?);
        }
        Ok(best)
    }

    /// The name of this device in a figure's lines.
    pub fn name(&self) -> &'static str {
        if self.emulated { "emulated device" } else { "GPU" }
    }

    /// The device.
    pub fn device(&self) -> &Arc<overspill_machine::driver::Device> {
        self.kernels.device()
    }
}
