//! `overspill datagen`, `bench`, `machine` and `advise`: the tools beside SQL.

use std::process::ExitCode;

use clap::Subcommand;
use datafusion::error::DataFusionError;
use overspill_bench::BenchArgs;
use overspill_bench::datagen::{self, DatagenArgs};
use overspill_session::{Error, Limits};
use tokio::task::spawn_blocking;

use crate::advise::{self, AdviseArgs};
use crate::exit;
use crate::failure::{Failure, Outcome};
use crate::interrupt::{Insistence, Interrupts};
use crate::machine::{self, MachineArgs};

/// The tools beside the SQL shell.
#[derive(Debug, Subcommand)]
pub enum Tool {
    /// Generate tables to join
    Datagen(DatagenArgs),
    /// Run an experiment and print its table
    Bench(BenchArgs),
    /// Show the processors, memory and GPUs of this machine
    Machine(MachineArgs),
    /// Predict the time of each join strategy on a machine, and name the fastest
    Advise(AdviseArgs),
}

pub fn main(tool: Tool) -> ExitCode {
    exit::with_runtime(Limits::of_this_machine().threads, |runtime| runtime.block_on(run(tool)).map(|()| true))
}

async fn run(tool: Tool) -> Outcome<()> {
    let interrupts = Interrupts::new();
    interrupts
        .listen(Insistence::Ends)
        .map_err(|error| Failure::message(format!("cannot listen for Ctrl-C: {error}")))?;
    let work = async {
        let done = match tool {
            // Measuring takes seconds, during which Ctrl-C is handled.
            Tool::Machine(arguments) => {
                return match spawn_blocking(move || machine::run(&arguments)).await {
                    Ok(done) => done,
                    Err(error) => Err(Failure::message(format!("the machine could not be examined: {error}"))),
                };
            }
            Tool::Advise(arguments) => {
                return match spawn_blocking(move || advise::run(&arguments)).await {
                    Ok(done) => done,
                    Err(error) => Err(Failure::message(format!("the prediction failed: {error}"))),
                };
            }
            // The generators keep a thread busy from start to end.
            Tool::Datagen(arguments) => match spawn_blocking(move || datagen::run(&arguments)).await {
                Ok(done) => done,
                Err(error) => Err(DataFusionError::ExecutionJoin(Box::new(error))),
            },
            Tool::Bench(arguments) => overspill_bench::run(arguments).await,
        };
        done.map_err(|error| Failure::from(Error::from(error)))
    };
    tokio::select! {
        biased;
        signal = interrupts.raised() => Err(Failure::Interrupted(signal)),
        done = work => done,
    }
}
