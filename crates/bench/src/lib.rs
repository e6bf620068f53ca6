//! Overspill's data generators, `overspill datagen …`, and its experiments, `overspill bench …`.

#![deny(missing_docs)]

pub mod datagen;
pub mod spill;

use clap::{Args, Subcommand};
use datafusion::common::{Result, exec_datafusion_err};

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
}

/// Runs an experiment and prints its table on standard output.
///
/// # Errors
/// When a run fails, the engines disagree on the answer, or `--check` is given and a bound is missed.
pub async fn run(args: BenchArgs) -> Result<()> {
    // The experiments wait for other processes.
    tokio::task::spawn_blocking(move || match args.experiment {
        Experiment::Spill(args) => spill::run(&args),
    })
    .await
    .map_err(|error| exec_datafusion_err!("The experiment stopped: {error}"))?
}
