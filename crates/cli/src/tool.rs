//! `overspill datagen`, `bench`, `machine`, `advise` and `cluster`: the tools beside SQL.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use datafusion::error::DataFusionError;
use overspill_bench::BenchArgs;
use overspill_bench::datagen::{self, DatagenArgs};
use overspill_session::{Error, Limits};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

use crate::advise::{self, AdviseArgs};
use crate::cluster::{self, ClusterTool};
use crate::failure::{Failure, Outcome, status_of};
use crate::interrupt::{Insistence, Interrupts};
use crate::machine::{self, MachineArgs};

/// How long the end of a tool waits for work on other threads that cannot be stopped at once.
const END_PATIENCE: Duration = Duration::from_secs(2);

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
    /// Start a part of a cluster, for queries of overspill --cluster HOST:PORT
    #[command(subcommand)]
    Cluster(ClusterTool),
}

pub fn main(tool: Tool) -> ExitCode {
    let threads = Limits::of_this_machine().threads;
    let outcome = match Builder::new_multi_thread().worker_threads(threads).enable_all().build() {
        Ok(runtime) => {
            let outcome = runtime.block_on(run(tool));
            runtime.shutdown_timeout(END_PATIENCE);
            outcome
        }
        Err(error) => Err(Failure::message(format!("cannot start {threads} threads: {error}"))),
    };
    status_of(outcome.map(|()| true))
}

async fn run(tool: Tool) -> Outcome<()> {
    let interrupts = Interrupts::new();
    interrupts.listen(Insistence::Ends)?;
    let ends_by_itself = matches!(tool, Tool::Cluster(_));
    let failed = |error: DataFusionError| Failure::from(Error::from(error));
    let work = async {
        match tool {
            Tool::Machine(arguments) => {
                aside("the machine could not be examined", move || machine::run(&arguments)).await
            }
            Tool::Advise(arguments) => aside("the prediction failed", move || advise::run(&arguments)).await,
            // The generators keep a thread busy from start to end.
            Tool::Datagen(arguments) => match spawn_blocking(move || datagen::run(&arguments)).await {
                Ok(done) => done.map_err(failed),
                Err(error) => Err(failed(DataFusionError::ExecutionJoin(Box::new(error)))),
            },
            Tool::Bench(arguments) => overspill_bench::run(arguments).await.map_err(failed),
            Tool::Cluster(tool) => cluster::run(tool, &interrupts).await,
        }
    };
    if ends_by_itself {
        // It stops at a signal too, once its tasks have stopped and their files are gone.
        return work.await;
    }
    interrupts.unless_raised(work).await?
}

/// Runs work of seconds on a thread of its own, so that Ctrl-C is handled meanwhile.
async fn aside(problem: &str, work: impl FnOnce() -> Outcome<()> + Send + 'static) -> Outcome<()> {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Failure::message(format!("{problem}: {error}"))),
    }
}
