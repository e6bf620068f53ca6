//! Ranks of an MPI job, each a process.
//!
//! MPI libraries differ in their binary interfaces, so a C file of a dozen functions, which `make mpi` compiles on the cluster, is loaded
//! when it is asked for. Programs are built without MPI.

mod carrier;
mod header;
mod library;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use overspill_machine::driver::Device;

use self::carrier::{Carrier, Command};
use self::library::Mpi;
use super::endpoint::{Endpoint, Wire};
use super::frame::Frame;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::topology::Topology;

/// Variables that launchers of MPI jobs set for each process: Open MPI, those with PMI, and Slurm with PMIx.
const SET_BY_LAUNCHERS: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"];

/// Whether this process was started as a rank of an MPI job.
pub fn is_rank_of_mpi() -> bool {
    SET_BY_LAUNCHERS.iter().any(|name| std::env::var_os(name).is_some())
}

/// This process as a rank of an MPI job.
#[derive(Debug)]
pub struct MpiRank {
    endpoint: Arc<Endpoint>,
    sharing_memory: usize,
    commands: Sender<Command>,
    thread: JoinHandle<Result<()>>,
}

impl MpiRank {
    /// Starts MPI by the library at `path`, or by the one beside the program. Ranks that share memory are on one node, unless
    /// `ranks_per_node` says otherwise. Call it once in a process.
    ///
    /// # Errors
    /// If there is no such library, or MPI does not start.
    pub fn start(path: Option<&Path>, ranks_per_node: Option<NonZeroUsize>) -> Result<Self> {
        let (commands, taken) = mpsc::channel();
        let (started, ranks) = mpsc::channel();
        let (made, endpoints) = mpsc::channel();
        let path = path.map_or_else(beside_program, |path| Ok(path.to_owned()))?;
        let thread = std::thread::Builder::new().name("overspill-mpi".to_owned()).spawn(move || {
            let mpi = match Mpi::start(&path) {
                Ok(mpi) => mpi,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return Ok(());
                }
            };
            let _ = started.send(Ok((mpi.rank, mpi.lowest_of_node.clone(), mpi.takes_gpu_memory)));
            // Nothing is taken before there is who it is for.
            match endpoints.recv() {
                Ok(endpoint) => Carrier::new(mpi, taken, endpoint).run(),
                Err(_) => mpi.end(),
            }
        });
        let thread = thread.map_err(|error| Error::Mpi(format!("no thread for MPI: {error}")))?;
        let (rank, lowest, takes_gpu_memory) = ranks.recv().map_err(|_| Error::Mpi("MPI has stopped".to_owned()))??;
        let topology = match ranks_per_node {
            Some(ranks_per_node) => Topology::of_nodes(lowest.len(), ranks_per_node.get())?,
            None => Topology::new(&nodes(&lowest))?,
        };
        let wire = Box::new(Queue { commands: commands.clone(), takes_gpu_memory });
        let sharing_memory = lowest.iter().filter(|other| **other == lowest[rank]).count();
        let endpoint = Arc::new(Endpoint::new(rank, Arc::new(topology), wire));
        let _ = made.send(Arc::downgrade(&endpoint));
        Ok(Self { endpoint, sharing_memory, commands, thread })
    }

    /// The rank's part in all jobs.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// How many ranks are on this machine, whatever nodes they were said to be on.
    pub fn sharing_memory(&self) -> usize {
        self.sharing_memory
    }

    /// The time in which MPI's own `MPI_Alltoallv` brings so many bytes from each rank to each, if all call this at once: the bound of an exchange.
    ///
    /// # Errors
    /// If MPI fails, or all bytes are more than a message may have.
    pub fn all_to_all(&self, bytes: usize) -> Result<Duration> {
        let (answer, answered) = mpsc::channel();
        let _ = self.commands.send(Command::AllToAll(bytes, answer));
        answered.recv().map_err(|_| Error::Mpi("MPI has stopped".to_owned()))?
    }

    /// Ends MPI, once all ranks do. The process cannot start it again.
    ///
    /// # Errors
    /// If MPI has failed.
    pub fn end(self) -> Result<()> {
        let _ = self.commands.send(Command::End);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The library that `make mpi` compiles, beside the program.
fn beside_program() -> Result<PathBuf> {
    let program =
        std::env::current_exe().map_err(|error| Error::Mpi(format!("this program cannot be found: {error}")))?;
    Ok(program.with_file_name("liboverspill_mpi.so"))
}

/// Numbers for nodes, which MPI tells by their lowest ranks.
fn nodes(lowest: &[Rank]) -> Vec<usize> {
    let mut all = lowest.to_vec();
    all.sort_unstable();
    all.dedup();
    lowest.iter().map(|lowest| all.partition_point(|other| other < lowest)).collect()
}

#[derive(Debug)]
struct Queue {
    commands: Sender<Command>,
    takes_gpu_memory: bool,
}

impl Wire for Queue {
    fn send(&self, to: Rank, frame: Frame) {
        // Without its thread the rank has been told that it is lost.
        let _ = self.commands.send(Command::Send(to, frame));
    }

    fn takes_memory_of(&self, device: &Device) -> bool {
        // The stand-in's memory is CPU memory, which each MPI takes.
        self.takes_gpu_memory || device.is_emulated()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_without_gaps() {
        assert_eq!(nodes(&[0, 0, 2, 2, 0, 5]), [0, 0, 1, 1, 0, 2]);
    }

    #[test]
    fn a_library_that_is_missing_is_named() {
        let error = MpiRank::start(Some(Path::new("/nowhere/liboverspill_mpi.so")), None).unwrap_err().to_string();
        assert!(error.contains("No such file or directory") && error.contains("make mpi"), "{error}");
    }
}
