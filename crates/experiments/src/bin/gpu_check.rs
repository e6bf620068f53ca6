//! Checks and measurements that require a real GPU, in one program that depends only on the driver. Each compares kernels with
//! references, or measures a figure, in a process of its own: a fault or a hang ends one of them. `scripts/gpu-session` runs all of
//! them on a machine with a GPU.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use overspill_experiments::{
    CheckEffort, DeviceArgs, Error, Figure, FigureExperiment, Gpu, KernelCheck, Machine, Result,
};
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
    /// Print the names of all checks and experiments
    List,
    /// Run one check or experiment
    Run(RunArgs),
    /// Check kernels against references on small data, all in this process: for compute-sanitizer
    Kernels {
        #[command(flatten)]
        device: DeviceArgs,
    },
    /// Keep the GPU initialised until standard input ends, so that other processes start faster
    Hold {
        #[command(flatten)]
        device: DeviceArgs,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// The check or experiment; `gpu-check list` prints the names
    #[arg(long, value_name = "NAME", value_parser = item_by_name)]
    only: Item,

    #[command(flatten)]
    device: DeviceArgs,

    /// Write the outcome to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Draw the figure of an experiment to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Small data, as on the emulated device
    #[arg(long)]
    small: bool,
}

/// A check or an experiment.
#[derive(Debug, Clone, Copy)]
enum Item {
    Check(KernelCheck),
    Experiment(FigureExperiment),
}

/// What `run` writes.
#[derive(Debug, Serialize)]
struct Outcome {
    name: String,
    machine: String,
    emulated: bool,
    seconds: f64,
    /// What was wrong.
    failure: Option<String>,
    /// What the GPU lacks.
    missing: Option<String>,
    figure: Option<Figure>,
}

/// The share of the data that experiments get with `--small`.
const SMALL_SCALE: f64 = 1.0 / 64.0;

impl Item {
    fn all() -> impl Iterator<Item = Self> {
        KernelCheck::all().into_iter().map(Self::Check).chain(FigureExperiment::ALL.map(Self::Experiment))
    }

    fn name(self) -> String {
        match self {
            Self::Check(check) => check.name(),
            Self::Experiment(experiment) => experiment.name().to_owned(),
        }
    }

    /// Runs it on a GPU. Only experiments have a figure.
    fn run(self, machine: &Machine, small: bool) -> Result<Option<Figure>> {
        match self {
            Self::Check(check) => {
                let small = small || machine.is_emulated();
                check.run(gpu(machine)?, if small { CheckEffort::SMALL } else { CheckEffort::FULL })?;
                Ok(None)
            }
            Self::Experiment(experiment) => {
                let scale = (small && !machine.is_emulated()).then_some(SMALL_SCALE);
                gpu(machine)?;
                experiment.run(machine, scale).map(Some)
            }
        }
    }
}

fn item_by_name(name: &str) -> Result<Item, String> {
    Item::all()
        .find(|item| item.name() == name)
        .ok_or_else(|| "it is none of those that `gpu-check list` prints".to_owned())
}

fn main() -> ExitCode {
    let done = match Arguments::parse().what {
        What::List => {
            Item::all().for_each(|item| println!("{}", item.name()));
            Ok(true)
        }
        What::Run(arguments) => run(&arguments),
        What::Kernels { device } => kernels(&device),
        What::Hold { device } => hold(&device),
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

fn run(arguments: &RunArgs) -> Result<bool> {
    let begin = Instant::now();
    let machine = arguments.device.open()?;
    let done = arguments.only.run(&machine, arguments.small);
    let (figure, error) = match done {
        Ok(figure) => (figure, None),
        Err(error) => (None, Some(error)),
    };
    let (missing, failure) = match error {
        Some(error) if error.is_missing() => (Some(error.to_string()), None),
        error => (None, error.map(|error| error.to_string())),
    };
    let outcome = Outcome {
        name: arguments.only.name(),
        machine: machine.describe(),
        emulated: machine.is_emulated(),
        seconds: begin.elapsed().as_secs_f64(),
        failure,
        missing,
        figure,
    };
    if let Some(figure) = &outcome.figure {
        println!("{figure}");
        figure.write(None, arguments.svg.as_deref())?;
    }
    if let Some(path) = &arguments.json {
        write(path, &outcome)?;
    }
    println!("{:.2} s  {}  {}", outcome.seconds, outcome.name, verdict(&outcome));
    Ok(outcome.failure.is_none())
}

fn verdict(outcome: &Outcome) -> String {
    match (&outcome.failure, &outcome.missing) {
        (Some(reason), _) => format!("FAILED: {reason}"),
        (None, Some(reason)) => format!("skipped: {reason}"),
        (None, None) => "ok".to_owned(),
    }
}

fn kernels(device: &DeviceArgs) -> Result<bool> {
    let machine = device.open()?;
    let gpu = gpu(&machine)?;
    let mut all_right = true;
    for check in KernelCheck::all() {
        match check.run(gpu, CheckEffort::SMALL) {
            Ok(()) => println!("ok  {}", check.name()),
            Err(error) if error.is_missing() => println!("skipped  {}: {error}", check.name()),
            Err(error) => {
                println!("FAILED  {}: {error}", check.name());
                all_right = false;
            }
        }
    }
    Ok(all_right)
}

fn hold(device: &DeviceArgs) -> Result<bool> {
    let machine = device.open()?;
    gpu(&machine)?;
    println!("holding {}", machine.describe());
    let mut ignored = Vec::new();
    // An error ends standard input as well.
    let _ = std::io::stdin().read_to_end(&mut ignored);
    Ok(true)
}

fn write(path: &Path, outcome: &Outcome) -> Result<()> {
    let failed = |reason: String| Error::Write { path: path.to_owned(), reason };
    let json = serde_json::to_string_pretty(outcome).map_err(|error| failed(error.to_string()))?;
    std::fs::write(path, json + "\n").map_err(|error| failed(error.to_string()))
}
