//! The table of the experiment.

use std::fmt::{self, Display, Formatter};

use overspill_exchange::{Columns, GpuBytes, Levels};
use serde_json::{Value as Json, json};

use super::ExchangeArgs;
use super::way::Way;
use crate::report::{size, value_name};

/// What was measured of one way: of all ranks together.
#[derive(Debug)]
pub struct Measured {
    pub way: Way,
    pub seconds: f64,
    pub across: Columns,
    pub within: Columns,
    pub from_gpu: GpuBytes,
}

/// What all-to-all takes by itself.
#[derive(Debug, Clone, Copy)]
pub struct AllToAllSeconds {
    /// By `MPI_Alltoallv`.
    pub mpi: f64,
    /// By the exchange, in rounds.
    pub ours: f64,
}

/// What was measured.
#[derive(Debug)]
pub struct Report<'a> {
    pub args: &'a ExchangeArgs,
    pub is_mpi: bool,
    pub ranks: usize,
    pub nodes: usize,
    pub rows: u64,
    pub bytes: u64,
    /// Seconds in which all ranks copy their rows once.
    pub copy: f64,
    /// Seconds in which as many bytes get from each rank to each without partitioning, among ranks of an MPI job.
    pub all_to_all: Option<AllToAllSeconds>,
    /// Why rows in GPU memory were not shuffled, if they were not.
    pub no_gpu_because: Option<String>,
    pub measured: Vec<Measured>,
}

impl Report<'_> {
    pub fn json(&self) -> Json {
        let columns = |columns: Columns| json!({ "messages": columns.messages, "bytes": columns.bytes, "sent_bytes": columns.sent_bytes });
        let ways = self.measured.iter().map(|measured| {
            json!({
                "levels": if measured.way.levels == Levels::One { 1 } else { 2 },
                "compressed": measured.way.is_compressed,
                "on_gpu": measured.way.is_on_gpu,
                "seconds": measured.seconds,
                "across": columns(measured.across),
                "within": columns(measured.within),
                "sent_from_gpu_directly": measured.from_gpu.direct,
                "sent_from_gpu_through_pinned_memory": measured.from_gpu.through_cpu,
            })
        });
        json!({
            "transport": if self.is_mpi { "mpi" } else { "in process" },
            "ranks": self.ranks,
            "nodes": self.nodes,
            "rows_of": value_name(&self.args.rows),
            "rows": self.rows,
            "bytes": self.bytes,
            "round_bytes": u64::from(self.args.round) * 1_000_000,
            "network_bytes_per_second": self.args.network.map(|rate| rate.get() as f64 * 1e6),
            "copy_seconds": self.copy,
            "mpi_all_to_all_seconds": self.all_to_all.map(|seconds| seconds.mpi),
            "exchange_alone_seconds": self.all_to_all.map(|seconds| seconds.ours),
            "ways": ways.collect::<Vec<_>>(),
        })
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let rate = |seconds: f64| self.bytes as f64 / seconds / 1e9;
        let place = if self.is_mpi { "by MPI" } else { "all in this process" };
        writeln!(
            f,
            "{:.1} million rows, {}, among {} ranks on {} nodes, {place}.",
            self.rows as f64 / 1e6,
            size(self.bytes),
            self.ranks,
            self.nodes,
        )?;
        write!(f, "Copied once by all ranks: {:.2} GB/s.", rate(self.copy))?;
        if let Some(AllToAllSeconds { mpi, ours }) = self.all_to_all {
            let (mpi, ours) = (rate(mpi), rate(ours));
            write!(
                f,
                " MPI_Alltoallv of as many bytes: {mpi:.2} GB/s. The exchange without partitioning: {ours:.2} GB/s."
            )?;
        }
        writeln!(f, "\n\n{:<24} {:>8} {:>8} {:>24} {:>24}", "", "s", "GB/s", "across nodes", "within nodes")?;
        for Measured { way, seconds, across, within, .. } in &self.measured {
            let cell = |columns: &Columns| format!("{} messages, {}", columns.messages, size(columns.sent_bytes));
            let (name, across, within) = (way.name(), cell(across), cell(within));
            writeln!(f, "{name:<24} {seconds:>8.3} {:>8.2} {across:>24} {within:>24}", rate(*seconds))?;
        }
        if let Some(reason) = &self.no_gpu_because {
            return writeln!(f, "GPU: refused, {reason}");
        }
        let sent = self.measured.iter().fold(GpuBytes::default(), |sum, measured| sum + measured.from_gpu);
        if sent == GpuBytes::default() {
            return Ok(());
        }
        let (direct, pinned) = (size(sent.direct), size(sent.through_cpu));
        writeln!(f, "From GPU memory, {direct} were sent directly and {pinned} through pinned memory.")
    }
}
