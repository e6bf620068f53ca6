//! The ranks of a figure: threads of this process on pretended nodes, or the processes of an MPI job.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use datafusion::common::{Result, exec_err};
use overspill_exchange::Topology;
use overspill_exchange::transport::{Endpoint, MpiRank, Network, in_process, is_rank_of_mpi};

use crate::member::Member;
use crate::report::failed;
use crate::threads::on_each;

/// Ranks and ranks of a node where they are threads: as few as have two levels on several nodes, and twice as many.
const THREADS: usize = 8;
const THREADS_PER_NODE: usize = 2;

/// The ranks of the figures of paper 4.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Ranks of the figures of paper 4")]
pub struct RankArgs {
    /// The most ranks, each a thread of this process [default: 8, or those of the MPI job]
    #[arg(long, value_name = "N")]
    pub ranks: Option<NonZeroUsize>,

    /// Ranks of a node [default: 2, or those that share memory]
    #[arg(long, value_name = "N")]
    pub ranks_per_node: Option<NonZeroUsize>,

    /// MB that a rank receives in a second, over a network that is made so slow [default: no network]
    #[arg(long, value_name = "N")]
    pub network: Option<NonZeroUsize>,

    /// The library that `make mpi` has compiled, for ranks that mpirun starts [default: liboverspill_mpi.so beside the program]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ranks", "network"])]
    pub mpi_library: Option<PathBuf>,
}

impl RankArgs {
    /// Whether this process is a rank of an MPI job. If not, the ranks are threads of it.
    pub(super) fn are_of_mpi(&self) -> bool {
        self.mpi_library.is_some() || (is_rank_of_mpi() && self.ranks.is_none())
    }
}

/// Ranks that join.
pub(super) enum Cluster {
    /// Threads, which begin with each measurement.
    Threads { most: usize, ranks_per_node: usize, megabytes: Option<NonZeroUsize> },
    /// This rank of an MPI job, whose jobs are numbered from its start on.
    Mpi { mpi: MpiRank, member: RefCell<Member> },
}

impl Cluster {
    /// # Errors
    /// If MPI does not start, or should be slowed.
    pub(super) fn open(args: &RankArgs) -> Result<Self> {
        if !args.are_of_mpi() {
            return Ok(Self::Threads {
                most: args.ranks.map_or(THREADS, NonZeroUsize::get),
                ranks_per_node: args.ranks_per_node.map_or(THREADS_PER_NODE, NonZeroUsize::get),
                megabytes: args.network,
            });
        }
        if args.network.is_some() {
            return exec_err!(
                "--network slows threads of this process, and these are ranks of an MPI job: give --ranks, or leave it out."
            );
        }
        let mpi = MpiRank::start(args.mpi_library.as_deref(), args.ranks_per_node).map_err(failed)?;
        let member = RefCell::new(Member::new(Arc::clone(mpi.endpoint())));
        Ok(Self::Mpi { mpi, member })
    }

    /// Ends MPI, if the ranks are its processes.
    ///
    /// # Errors
    /// If MPI has failed.
    pub(super) fn end(self) -> Result<()> {
        match self {
            Self::Threads { .. } => Ok(()),
            Self::Mpi { mpi, member } => {
                // Its job ends before MPI does.
                drop(member);
                mpi.end().map_err(failed)
            }
        }
    }

    /// The numbers of ranks that can be measured: powers of two and all. Those of an MPI job all take part.
    pub(super) fn sizes(&self) -> Vec<usize> {
        let most = self.most();
        if let Self::Mpi { .. } = self {
            return vec![most];
        }
        let powers = std::iter::successors(Some(1), |ranks| Some(ranks * 2)).take_while(|ranks| *ranks < most);
        powers.chain([most]).collect()
    }

    /// The largest number of ranks.
    pub(super) fn most(&self) -> usize {
        match self {
            Self::Threads { most, .. } => *most,
            Self::Mpi { mpi, .. } => mpi.endpoint().topology().ranks(),
        }
    }

    /// The number of nodes that a number of ranks is on.
    pub(super) fn nodes(&self, ranks: usize) -> usize {
        match self {
            Self::Threads { ranks_per_node, .. } => ranks.div_ceil(*ranks_per_node),
            Self::Mpi { mpi, .. } => mpi.endpoint().topology().nodes(),
        }
    }

    /// Whether two levels differ from one: several nodes have several ranks.
    pub(super) fn has_two_levels(&self, ranks: usize) -> bool {
        let nodes = self.nodes(ranks);
        nodes > 1 && ranks > nodes
    }

    /// Whether this process reports what all ranks have measured.
    pub(super) fn reports(&self) -> bool {
        match self {
            Self::Threads { .. } => true,
            Self::Mpi { mpi, .. } => mpi.endpoint().rank() == 0,
        }
    }

    /// Whether each rank is a process.
    pub(super) fn are_processes(&self) -> bool {
        matches!(self, Self::Mpi { .. })
    }

    /// The ranks of this machine that run at once.
    pub(super) fn here(&self) -> usize {
        match self {
            Self::Threads { most, .. } => *most,
            Self::Mpi { mpi, .. } => mpi.sharing_memory(),
        }
    }

    /// Whether bytes between ranks of different nodes take a while that fewer bytes would shorten.
    pub(super) fn has_network(&self) -> bool {
        match self {
            Self::Threads { megabytes, .. } => megabytes.is_some(),
            Self::Mpi { .. } => true,
        }
    }

    /// What ranks are, in words.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Threads { ranks_per_node, megabytes, .. } => {
                let network = megabytes.map(|rate| format!("; each rank receives {rate} MB a second"));
                format!("ranks are threads of this process, {ranks_per_node} a node{}", network.unwrap_or_default())
            }
            Self::Mpi { .. } => "ranks are processes of an MPI job".to_owned(),
        }
    }

    /// Runs work on each of `ranks` ranks, in this process or in all, and returns what it gives on the first rank here.
    pub(super) fn on_each<T: Send>(&self, ranks: usize, work: impl Fn(&mut Member) -> Result<T> + Sync) -> Result<T> {
        let run = |member: &mut Member| work(member).inspect_err(|error| member.fail(error));
        match self {
            Self::Mpi { member, .. } => run(&mut member.borrow_mut()),
            Self::Threads { ranks_per_node, megabytes, .. } => {
                let topology = Topology::of_nodes(ranks, *ranks_per_node).map_err(failed)?;
                let network = megabytes
                    .map(|rate| Network { bytes_per_second: Some(rate.get() as f64 * 1e6), ..Network::default() });
                let endpoints = in_process(&Arc::new(topology), network);
                let mut given = on_each(endpoints, |endpoint: Arc<Endpoint>| run(&mut Member::new(endpoint)))?;
                Ok(given.swap_remove(0))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_measured_at_powers_of_two_and_all() {
        let cluster = |ranks: usize, ranks_per_node: usize| {
            Cluster::open(&RankArgs {
                ranks: NonZeroUsize::new(ranks),
                ranks_per_node: NonZeroUsize::new(ranks_per_node),
                ..RankArgs::default()
            })
            .unwrap()
        };
        assert_eq!(cluster(1, 1).sizes(), [1]);
        assert_eq!(cluster(8, 2).sizes(), [1, 2, 4, 8]);
        assert_eq!(cluster(6, 2).sizes(), [1, 2, 4, 6]);
        assert_eq!([1, 2, 3, 4].map(|ranks| cluster(4, 2).has_two_levels(ranks)), [false, false, true, true]);
        // A rank on each node has no one to share it with.
        assert!(!cluster(4, 1).has_two_levels(4));
        let ranks = cluster(5, 2).on_each(5, |member| Ok(member.gather(&[member.endpoint().rank() as u64])?.concat()));
        assert_eq!(ranks.unwrap(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_rank_that_fails_ends_all() {
        let cluster = Cluster::open(&RankArgs { ranks: NonZeroUsize::new(3), ..RankArgs::default() }).unwrap();
        let failing = cluster.on_each(3, |member| match member.endpoint().rank() {
            1 => exec_err!("its memory is full"),
            _ => member.gather(&[]).map(drop),
        });
        let error = failing.unwrap_err().to_string();
        assert!(error.contains("its memory is full"), "{error}");
    }
}
