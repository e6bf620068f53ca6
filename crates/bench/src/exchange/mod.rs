//! The experiment `overspill bench exchange`: the shuffle of the repartitioned join (paper 4, sections 3 to 5), among threads of this
//! process or ranks of an MPI job.

mod rank;
mod report;
mod way;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use clap::{Args, ValueEnum};
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill_exchange::Topology;
use overspill_exchange::transport::{Endpoint, MpiRank, Network, in_process, is_rank_of_mpi};
use overspill_experiments::DeviceArgs;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::rank::RankRun;
use self::report::Report;
use crate::datagen;
use crate::rank_gpu::gpu_of;
use crate::report::{failed, slow_build, write_file};
use crate::threads::on_each;

/// Rows of a batch.
const BATCH: usize = 8192;

/// The arguments of `overspill bench exchange`.
#[derive(Debug, Clone, Args)]
pub struct ExchangeArgs {
    /// Ranks, each a thread of this process [default: 4, or those of the MPI job]
    #[arg(long, value_name = "N")]
    pub ranks: Option<NonZeroUsize>,

    /// Ranks of a node [default: all, or those that share memory]
    #[arg(long, value_name = "N")]
    pub ranks_per_node: Option<NonZeroUsize>,

    /// The library that `make mpi` has compiled, for ranks that mpirun starts [default: liboverspill_mpi.so beside the program]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ranks", "network"])]
    pub mpi_library: Option<PathBuf>,

    /// What is shuffled by its first column
    #[arg(long, value_enum, default_value_t = ExchangeRows::Random)]
    pub rows: ExchangeRows,

    /// Rows of each rank, in millions: 1 is 16 MB of random keys
    #[arg(long, default_value_t = 2.0, value_name = "N")]
    pub millions: f64,

    /// MB that a rank sends in a round
    #[arg(long, default_value = "8", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub round: u32,

    /// MB that a rank receives in a second, over a network that is made so slow [default: no network]
    #[arg(long, value_name = "N")]
    pub network: Option<NonZeroUsize>,

    /// The GPU that shuffles rows in its memory. Ranks of a node have one each, as far as there are some.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// Send rows in GPU memory through pinned memory, also where ranks could read each other's, or MPI takes it
    #[arg(long)]
    pub pinned: bool,

    /// Number of runs; the median is shown
    #[arg(long, default_value = "3", value_name = "N")]
    pub runs: NonZeroUsize,

    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The rows of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExchangeRows {
    /// Random keys of 8 bytes with row numbers (paper 4, section 6.2).
    Random,
    /// The keys of TPC-H's lineitem, in their order (section 6.4).
    Lineitem,
}

/// Shuffles the rows on each way and writes the table.
///
/// # Errors
/// If rows are lost, a rank fails, or a figure cannot be written.
pub(crate) fn run(args: &ExchangeArgs, out: &mut dyn std::io::Write) -> Result<()> {
    let report = if args.mpi_library.is_some() || (is_rank_of_mpi() && args.ranks.is_none()) {
        run_mpi(args)?
    } else {
        Some(run_threads(args)?)
    };
    // One rank of an MPI job speaks for all.
    let Some(report) = report else { return Ok(()) };
    if let Some(path) = &args.json {
        write_file(path, &format!("{:#}\n", report.json()))?;
    }
    let note = slow_build().map(|note| format!("{note}\n")).unwrap_or_default();
    write!(out, "{report}{note}").map_err(|error| exec_datafusion_err!("cannot write the table: {error}"))
}

/// Runs all ranks here, each on a thread.
fn run_threads(args: &ExchangeArgs) -> Result<Report<'_>> {
    let ranks = args.ranks.map_or(4, NonZeroUsize::get);
    let topology = Topology::of_nodes(ranks, args.ranks_per_node.map_or(ranks, NonZeroUsize::get)).map_err(failed)?;
    let network =
        args.network.map(|rate| Network { bytes_per_second: Some(rate.get() as f64 * 1e6), ..Network::default() });
    let endpoints = in_process(&Arc::new(topology), network);
    let parts: Vec<_> = (0..ranks).map(|rank| rows(args, rank, ranks)).collect::<Result<_>>()?;
    let work = endpoints.iter().zip(parts).collect();
    let mut reports = on_each(work, |(endpoint, batches): (&Arc<Endpoint>, _)| {
        RankRun::new(endpoint.clone(), batches, gpu_of(&args.device, endpoint)).run(args, None)
    })?;
    Ok(reports.swap_remove(0))
}

/// Runs this rank of an MPI job. The first has the report.
fn run_mpi(args: &ExchangeArgs) -> Result<Option<Report<'_>>> {
    if args.network.is_some() {
        return exec_err!(
            "--network slows threads of this process, and these are ranks of an MPI job: give --ranks, or leave it out."
        );
    }
    let mpi = MpiRank::start(args.mpi_library.as_deref(), args.ranks_per_node).map_err(failed)?;
    let endpoint = mpi.endpoint().clone();
    let rank = endpoint.rank();
    let report = rows(args, rank, endpoint.topology().ranks()).and_then(|batches| {
        RankRun::new(endpoint.clone(), batches, gpu_of(&args.device, &endpoint)).run(args, Some(&mpi))
    });
    drop(endpoint);
    mpi.end().map_err(failed)?;
    report.map(|report| (rank == 0).then_some(report))
}

/// The batches of a rank, at least one.
fn rows(args: &ExchangeArgs, rank: usize, ranks: usize) -> Result<Vec<RecordBatch>> {
    let rows = (args.millions * 1e6) as usize;
    if rows == 0 {
        return exec_err!("There are no rows: raise --millions.");
    }
    match args.rows {
        ExchangeRows::Random => {
            let mut random = ChaCha8Rng::seed_from_u64(rank as u64);
            let mut batch = |begin: usize| {
                let rows = BATCH.min(rows - begin);
                let first = (rank * rows + begin) as i64;
                let keys = (0..rows).map(|_| random.next_u64() as i64);
                let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
                let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows as i64));
                Ok(RecordBatch::try_from_iter([("key", keys), ("row", numbers)])?)
            };
            (0..rows).step_by(BATCH).map(&mut batch).collect()
        }
        ExchangeRows::Lineitem => {
            // A scale factor has six million lines.
            let batches = datagen::tpch_table("lineitem", args.millions * ranks as f64 / 6.0)?;
            let of_rank = batches.len().div_ceil(ranks);
            // A rank beyond the last batch knows the columns, too.
            let none = batches.iter().take(1).map(|batch| batch.slice(0, 0));
            let own = none.chain(batches.iter().skip(rank * of_rank).take(of_rank).cloned());
            own.map(|batch| Ok(batch.project(&[0])?)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use overspill_machine::DeviceKind;

    use super::*;

    #[test]
    fn each_way_has_its_messages() {
        let args = ExchangeArgs {
            ranks: NonZeroUsize::new(4),
            ranks_per_node: NonZeroUsize::new(2),
            mpi_library: None,
            rows: ExchangeRows::Lineitem,
            millions: 0.02,
            round: 100,
            network: NonZeroUsize::new(1000),
            device: DeviceArgs { device: DeviceKind::Cpu, gpu: 0, gpu_memory_limit: None, emulated_driver: None },
            pinned: false,
            runs: NonZeroUsize::MIN,
            json: None,
        };
        let mut table = vec![];
        run(&args, &mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        let line = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(table.contains("among 4 ranks on 2 nodes"), "{table}");
        // One column, in one round: from each rank to the two of the other node, or to one.
        assert!(line("one level, plain").contains(" 8 messages"), "{table}");
        assert!(line("two levels, compressed").contains(" 4 messages"), "{table}");
        let none = ExchangeArgs { millions: 0.0, rows: ExchangeRows::Random, ..args };
        assert!(run(&none, &mut vec![]).unwrap_err().to_string().contains("raise --millions"));
    }
}
