//! Figures of paper 4: Gao and Sakharnykh, *Scaling Joins to a Thousand GPUs* (ADMS 2021), for up to 1,024 A100 in nodes of eight.
//!
//! Two tables lie on ranks, a row finds its rank by one of four shuffles, and each rank joins what it has. Here a rank is a thread of a CPU on
//! a pretended node, or a process of an MPI job, and joins on a GPU, too, if each has one; the advisor predicts the paper's cluster. Pairs are written with the payloads of both
//! sides, and without the key.

mod breakdown;
mod data;
mod measured;
mod model;
mod on_gpu;
mod rates;

use datafusion::common::Result;

use self::data::Workload;
use super::bench::Bench;
use super::cluster::Cluster;
use super::outcome::Outcome;

/// The most tuples that all ranks join, unless a scale is given: all runs of a figure then take less than a minute.
const MOST_TUPLES: f64 = (1 << 22) as f64;

/// What the names of measured lines end with: those of CPUs, and those of GPUs.
const HERE: &str = "CPU ranks";
const ON_GPU: &str = "GPU ranks";

/// A figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paper4 {
    /// Figure 6: more ranks with as many random keys each.
    RandomKeys,
    /// Figure 7: more random keys on as many ranks.
    TableSize,
    /// Figure 8: more ranks with as many rows of TPC-H each.
    Tpch,
    /// Figure 9: where the time of figure 8 goes.
    Breakdown,
}

impl Paper4 {
    /// # Errors
    /// If memory runs out, a rank fails, or an answer is wrong.
    pub(super) fn run(self, bench: &Bench) -> Result<Outcome> {
        let cluster = Cluster::open(bench.ranks())?;
        let outcome = match self {
            Self::RandomKeys | Self::TableSize | Self::Tpch => rates::figure(self, bench, &cluster),
            Self::Breakdown => breakdown::figure(bench, &cluster),
        };
        let reports = cluster.reports();
        cluster.end()?;
        // The other ranks of an MPI job have the same numbers, and are silent.
        outcome.map(|outcome| if reports { outcome } else { Outcome::Done(vec![]) })
    }
}

/// The part of the paper's rows that `ranks` ranks have.
fn scale_of(bench: &Bench, workload: Workload, ranks: usize) -> Result<f64> {
    let [tuples, bytes] = [workload.rows(), workload.bytes()].map(|count| count * ranks as u64);
    let scale = bench.scale_within(tuples, bytes, MOST_TUPLES);
    bench.check_fits((bytes as f64 * scale) as u64)?;
    Ok(scale)
}

/// Describes the machine, the ranks and the scale on one line.
fn machine(bench: &Bench, cluster: &Cluster, scale: f64) -> String {
    format!("{}; {}; {scale:.3e} of the paper's rows a rank", bench.machine.describe(), cluster.describe())
}

/// What holds of all figures of ranks like these. `refused` says why ranks did not join on GPUs.
fn notes(bench: &Bench, cluster: &Cluster, refused: Option<String>) -> Vec<String> {
    let mut notes = vec![];
    let (ranks, processors) = (cluster.here(), bench.machine.topology.cpu.threads);
    if ranks > processors {
        notes.push(format!(
            "{ranks} ranks share {processors} processors: beyond {processors} they take turns, and together are no faster"
        ));
    }
    if !cluster.has_network() {
        notes.push(
            "ranks of one process share the bytes of messages, so there is no network that fewer bytes or messages could relieve: \
             --network makes one"
                .to_owned(),
        );
    }
    notes.push(match refused {
        Some(reason) => format!("GPUs: refused, ranks join on the CPU ({reason})"),
        None if bench.is_emulated() => {
            format!("{ON_GPU} gave the right answers on the emulated device, whose times mean nothing")
        }
        None => format!("{ON_GPU} begin with rows in GPU memory and end with pairs there, as the paper's do"),
    });
    notes
}
