//! A run of SQL as a rank of an MPI job.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::{ExitCode, exit};
use std::sync::Arc;

use clap::Args;
use overspill::OverspillRuntime;
use overspill_exchange::transport::{MpiRank, is_rank_of_mpi};
use overspill_exchange::{Member, NetworkEffort, measure_network};
use overspill_machine::measure::NetworkRates;
use overspill_ranks::{Leader, refuse, serve};
use overspill_session::{Error, Limits, Session};
use tokio::runtime::Builder;

use crate::failure::{Failure, Outcome, complain, status_of, tell};

/// How ranks find each other.
#[derive(Debug, Clone, Default, Args)]
pub struct MpiArgs {
    /// The library that `make mpi` has compiled, for a run that mpirun starts [default: liboverspill_mpi.so beside the program]
    #[arg(long, value_name = "FILE")]
    mpi_library: Option<PathBuf>,

    /// Ranks of a node, for a run that mpirun starts [default: those that share memory]
    #[arg(long, value_name = "N")]
    ranks_per_node: Option<NonZeroUsize>,
}

/// This process as a rank.
#[derive(Debug)]
pub struct MpiProcess {
    mpi: MpiRank,
    leader: Option<Arc<Leader>>,
}

impl MpiProcess {
    /// Starts MPI, if mpirun has started this process.
    pub fn start(arguments: &MpiArgs) -> Outcome<Option<Self>> {
        let MpiArgs { mpi_library, ranks_per_node } = arguments;
        if !is_rank_of_mpi() && mpi_library.is_none() {
            return match ranks_per_node {
                Some(_) => {
                    Err(Failure::message("--ranks-per-node is for a run that mpirun starts: mpirun -n N overspill …"))
                }
                None => Ok(None),
            };
        }
        let mpi = MpiRank::start(mpi_library.as_deref(), *ranks_per_node)
            .map_err(|error| Failure::message(error.to_string()))?;
        let leader = (mpi.endpoint().rank() == 0).then(|| Arc::new(Leader::new(Arc::clone(mpi.endpoint()))));
        Ok(Some(Self { mpi, leader }))
    }

    /// The rank that runs statements; `None` on the others.
    pub fn leader(&self) -> Option<&Arc<Leader>> {
        self.leader.as_ref()
    }

    /// The limits of a rank by default: its share of the machine.
    pub fn share(&self, machine: Limits) -> Limits {
        let ranks = self.mpi.sharing_memory();
        Limits { memory: machine.memory / ranks, threads: (machine.threads / ranks).max(1), ..machine }
    }

    /// Measures what ranks reach between each other. All of them have the rates.
    pub fn measure(&self) -> Outcome<NetworkRates> {
        let mut member = Member::new(Arc::clone(self.mpi.endpoint()));
        let measured = measure_network(&mut member, self.mpi.sharing_memory(), NetworkEffort::default());
        measured.map_err(|error| Failure::message(format!("the network could not be measured: {error}")))
    }

    /// Ends MPI. Returns whether this is the rank that speaks for all.
    pub fn finish(self) -> Outcome<bool> {
        let is_first = self.leader.is_some();
        drop(self.leader);
        self.mpi.end().map_err(|error| Failure::message(error.to_string()))?;
        Ok(is_first)
    }

    /// Serves the first rank until it ends, with these settings of the machine.
    pub fn serve(self, settings: &[(String, String)], limits: &Limits, runtime: OverspillRuntime) -> ExitCode {
        let outcome = serve_first(&self.mpi, settings, limits, runtime);
        if let Err(failure) = outcome {
            let rank = self.mpi.endpoint().rank();
            tell(&format!("rank {rank} ends"));
            complain(&failure);
            // MPI ends the other ranks, as this one has not ended it.
            exit(1);
        }
        self.finalize(ExitCode::SUCCESS)
    }

    /// Ends all ranks, after the last statement.
    pub fn end(self, status: ExitCode) -> ExitCode {
        if let Some(leader) = &self.leader {
            let ended = waiting()
                .and_then(|runtime| runtime.block_on(leader.end()).map_err(|error| Failure::from(Error::from(error))));
            if let Err(failure) = ended {
                complain(&failure);
                exit(1);
            }
        }
        self.finalize(status)
    }

    fn finalize(self, status: ExitCode) -> ExitCode {
        match self.mpi.end() {
            Ok(()) => status,
            Err(error) => status_of(Err(Failure::message(error.to_string()))),
        }
    }
}

fn waiting() -> Outcome<tokio::runtime::Runtime> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::message(format!("cannot wait for other ranks: {error}")))
}

fn serve_first(
    mpi: &MpiRank,
    settings: &[(String, String)],
    limits: &Limits,
    runtime: OverspillRuntime,
) -> Outcome<()> {
    let threads = Builder::new_multi_thread().worker_threads(limits.threads).enable_all().build();
    let threads = threads.map_err(|error| Failure::message(format!("cannot start threads: {error}")))?;
    let served = match Session::open(limits, settings, runtime) {
        Ok(session) => {
            session.warnings().iter().for_each(|warning| tell(&format!("warning: {warning}")));
            let state = session.context().state();
            let served = threads.block_on(async { serve(mpi.endpoint(), &state).await });
            session.close();
            served
        }
        // The first rank tells users, unless it has failed by itself.
        Err(error) => threads.block_on(refuse(mpi.endpoint(), &error.to_string())),
    };
    threads.shutdown_background();
    served.map_err(|error| Failure::from(Error::from(error)))
}
