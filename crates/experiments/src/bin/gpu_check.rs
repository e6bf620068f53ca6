//! Checks and measurements that require a real GPU, in one program that depends only on the driver: it compares kernels with
//! references, then runs the experiments. `scripts/gpu-check` runs it on a machine with a GPU.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use overspill_experiments::{
    CheckEffort, CheckOutcome, DeviceArgs, Error, Figure, FigureExperiment, Gpu, Machine, Result, check_kernels,
};
use overspill_machine::memory::{Mapping, check_mapping, probe_mapping};
use overspill_machine::topology::Topology;
use serde::Serialize;

/// Checks Overspill's kernels on a GPU, and measures them.
#[derive(Debug, Parser)]
#[command(name = "gpu-check", version)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Checks, then experiments; results as JSON, plots and a summary
    Run(RunArgs),
    /// Kernels against references alone, on small data: for compute-sanitizer
    Kernels {
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Whether the driver maps CPU pages; a faulty one may end this process
    Mapping {
        #[command(flatten)]
        device: DeviceArgs,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    device: DeviceArgs,

    /// Where results go
    #[arg(long, default_value = "gpu-check-results", value_name = "DIR")]
    out: PathBuf,

    /// Start no experiment after this many seconds
    #[arg(long, default_value_t = 420, value_name = "SECONDS")]
    time: u64,

    /// Small data throughout
    #[arg(long)]
    small: bool,
}

/// What `run` writes.
#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    emulated: bool,
    topology: Topology,
    mapping: &'static str,
    checks: Vec<CheckOutcome>,
    figures: Vec<Figure>,
    left_out: Vec<String>,
    seconds: f64,
}

/// If mapping a few pages takes longer, the driver is considered to hang.
const MAPPING_PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let done = match Arguments::parse().what {
        What::Run(arguments) => run(&arguments),
        What::Kernels { device } => kernels(&device),
        What::Mapping { device } => mapping(&device),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("gpu-check: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The GPU to check. A missing one is an error.
fn gpu(machine: &Machine) -> Result<&Gpu> {
    machine.gpu.as_ref().map_err(|reason| Error::NoDevice(reason.clone()))
}

fn kernels(device: &DeviceArgs) -> Result<bool> {
    let outcomes = check(gpu(&device.open()?)?, CheckEffort::SMALL);
    Ok(outcomes.iter().all(|outcome| outcome.failure.is_none()))
}

fn mapping(device: &DeviceArgs) -> Result<bool> {
    check_mapping(gpu(&device.open()?)?.device(), 0)?;
    Ok(true)
}

fn check(gpu: &Gpu, effort: CheckEffort) -> Vec<CheckOutcome> {
    let outcomes = check_kernels(gpu, effort);
    for outcome in &outcomes {
        let word = if outcome.failure.is_none() { "ok" } else { "FAILED" };
        let reason = outcome.failure.as_deref().unwrap_or_default();
        println!("{word:6} {:6.2} s  {}  {reason}", outcome.seconds, outcome.name);
    }
    outcomes
}

fn run(arguments: &RunArgs) -> Result<bool> {
    let begin = Instant::now();
    let machine = arguments.device.open()?;
    let gpu = gpu(&machine)?;
    println!("{}", machine.describe());
    let mapping = match probe_mapping(&mut this_program(arguments), MAPPING_PATIENCE) {
        Mapping::Contiguous => "contiguous",
        Mapping::TwoArrays => "two arrays",
    };
    println!("buffers over GPU and CPU memory: {mapping}");
    let small = arguments.small || machine.is_emulated();
    let checks = check(gpu, if small { CheckEffort::SMALL } else { CheckEffort::FULL });

    let mut figures = Vec::new();
    let mut left_out = Vec::new();
    let scale = (arguments.small && !machine.is_emulated()).then_some(1.0 / 64.0);
    for experiment in FigureExperiment::ALL {
        let is_late = begin.elapsed() > Duration::from_secs(arguments.time);
        match if is_late { Err(Error::NoTime) } else { experiment.run(&machine, scale) } {
            Ok(figure) => {
                println!("\n{figure}");
                figures.push(figure);
            }
            Err(error) => {
                println!("\n{experiment:?}: {error}");
                left_out.push(format!("{experiment:?}: {error}"));
            }
        }
    }

    let report = Report {
        machine: machine.describe(),
        emulated: machine.is_emulated(),
        topology: machine.topology,
        mapping,
        checks,
        figures,
        left_out,
        seconds: begin.elapsed().as_secs_f64(),
    };
    write(&arguments.out, &report)?;
    println!("\n{:.0} s; results in {}", report.seconds, arguments.out.display());
    Ok(report.checks.iter().all(|check| check.failure.is_none()) && report.left_out.is_empty())
}

/// A command that runs this program in another process to find out whether the driver maps CPU pages.
fn this_program(arguments: &RunArgs) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    command.arg("mapping").arg("--gpu").arg(arguments.device.gpu.to_string());
    command.arg("--device").arg(arguments.device.device.name());
    if let Some(library) = &arguments.device.emulated_driver {
        command.arg("--emulated-driver").arg(library);
    }
    command
}

fn write(folder: &Path, report: &Report) -> Result<()> {
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|error| Error::Write { path, reason: error.to_string() })
    };
    let json = serde_json::to_string_pretty(report)
        .map_err(|error| Error::Write { path: folder.to_owned(), reason: error.to_string() })?;
    put("gpu-check.json", &(json + "\n"))?;
    for figure in &report.figures {
        put(&format!("{}.svg", figure.name), &figure.to_svg()?)?;
    }
    Ok(())
}
