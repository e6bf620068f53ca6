//! The experiment `overspill bench exchange`: the shuffle of the repartitioned join among ranks of this process (paper 4, sections 3 to 5).

use std::fmt::{self, Display, Formatter};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use clap::{Args, ValueEnum};
use datafusion::common::{Result, exec_datafusion_err};
use futures::executor::block_on;
use futures::{TryStreamExt, stream};
use overspill_exchange::transport::{Endpoint, Job, JobId, Network, in_process};
use overspill_exchange::{Columns, Exchanged, Levels, ShuffleSpec, Topology};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value as Json, json};

use crate::datagen;
use crate::report::{failed, median, size, slow_build, tell, value_name, write_file};
use crate::threads::on_each;

/// Rows of a batch.
const BATCH: usize = 8192;

/// The arguments of `overspill bench exchange`.
#[derive(Debug, Clone, Args)]
pub struct ExchangeArgs {
    /// Ranks, each a thread of this process
    #[arg(long, default_value = "4", value_name = "N")]
    pub ranks: NonZeroUsize,

    /// Ranks of a node [default: all, so that there is one node]
    #[arg(long, value_name = "N")]
    pub ranks_per_node: Option<NonZeroUsize>,

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

/// One way of rows.
#[derive(Debug, Clone, Copy)]
struct Way {
    levels: Levels,
    is_compressed: bool,
}

const WAYS: [Way; 4] = [
    Way { levels: Levels::One, is_compressed: false },
    Way { levels: Levels::One, is_compressed: true },
    Way { levels: Levels::Two, is_compressed: false },
    Way { levels: Levels::Two, is_compressed: true },
];

impl Way {
    fn name(self) -> String {
        let levels = if self.levels == Levels::One { "one level" } else { "two levels" };
        format!("{levels}, {}", if self.is_compressed { "compressed" } else { "plain" })
    }
}

/// What was measured of one way: of all ranks together.
#[derive(Debug)]
struct Measured {
    way: Way,
    seconds: f64,
    across: Columns,
    within: Columns,
}

/// Shuffles the rows on each way and writes the table.
///
/// # Errors
/// If rows are lost, or a figure cannot be written.
pub(crate) fn run(args: &ExchangeArgs, out: &mut dyn std::io::Write) -> Result<()> {
    let ranks = args.ranks.get();
    let topology = Topology::of_nodes(ranks, args.ranks_per_node.map_or(ranks, NonZeroUsize::get)).map_err(failed)?;
    tell("generating rows");
    let parts = parts(args)?;
    let bytes: usize = parts.iter().flatten().map(RecordBatch::get_array_memory_size).sum();
    let mut copies = vec![];
    let mut times = vec![vec![]; WAYS.len()];
    let mut sent = vec![(Columns::default(), Columns::default()); WAYS.len()];
    for run in 0..args.runs.get() {
        copies.push(copy(&parts)?);
        for (number, way) in WAYS.into_iter().enumerate() {
            tell(&format!("run {}: {}", run + 1, way.name()));
            let (seconds, exchanged) = exchange(args, &topology, &parts, way)?;
            times[number].push(seconds);
            sent[number] = exchanged;
        }
    }
    let measured = WAYS.into_iter().zip(times).zip(sent).map(|((way, times), (across, within))| Measured {
        way,
        seconds: median(times).unwrap_or(f64::NAN),
        across,
        within,
    });
    let report = Report {
        args,
        nodes: topology.nodes(),
        rows: parts.iter().flatten().map(RecordBatch::num_rows).sum(),
        bytes,
        copy: median(copies).unwrap_or(f64::NAN),
        measured: measured.collect(),
    };
    if let Some(path) = &args.json {
        write_file(path, &format!("{:#}\n", report.json()))?;
    }
    let note = slow_build().map(|note| format!("{note}\n")).unwrap_or_default();
    write!(out, "{report}{note}").map_err(|error| exec_datafusion_err!("cannot write the table: {error}"))
}

/// The batches of each rank.
fn parts(args: &ExchangeArgs) -> Result<Vec<Vec<RecordBatch>>> {
    let (ranks, rows) = (args.ranks.get(), (args.millions * 1e6) as usize);
    let keys: Vec<RecordBatch> = match args.rows {
        ExchangeRows::Random => {
            let mut random = ChaCha8Rng::seed_from_u64(4);
            let mut batch = |begin: usize| {
                let rows = BATCH.min(ranks * rows - begin);
                let keys: ArrayRef =
                    Arc::new(Int64Array::from_iter_values((0..rows).map(|_| random.next_u64() as i64)));
                let numbers: ArrayRef =
                    Arc::new(Int64Array::from_iter_values((begin..begin + rows).map(|row| row as i64)));
                RecordBatch::try_from_iter([("key", keys), ("row", numbers)])
            };
            (0..ranks * rows).step_by(BATCH).map(&mut batch).collect::<Result<_, _>>()?
        }
        ExchangeRows::Lineitem => {
            // A scale factor has six million lines.
            let batches = datagen::tpch_table("lineitem", args.millions * ranks as f64 / 6.0)?;
            batches.iter().map(|batch| batch.project(&[0])).collect::<Result<_, _>>()?
        }
    };
    let of_rank = keys.len().div_ceil(ranks).max(1);
    let mut parts: Vec<Vec<RecordBatch>> = keys.chunks(of_rank).map(<[RecordBatch]>::to_vec).collect();
    parts.resize(ranks, vec![]);
    Ok(parts)
}

/// The seconds in which all ranks copy their rows once: the bound of everything.
fn copy(parts: &[Vec<RecordBatch>]) -> Result<f64> {
    let barrier = Barrier::new(parts.len());
    let seconds = on_each(parts.iter().collect(), |batches: &Vec<RecordBatch>| {
        let Some(schema) = batches.first().map(RecordBatch::schema) else {
            barrier.wait();
            return Ok(0.0);
        };
        barrier.wait();
        let started = Instant::now();
        let copied = arrow::compute::concat_batches(&schema, batches)?;
        std::hint::black_box(copied);
        Ok(started.elapsed().as_secs_f64())
    })?;
    Ok(seconds.into_iter().fold(0.0, f64::max))
}

/// Shuffles all rows. Returns the seconds until all ranks have theirs, and what crossed nodes and what did not.
fn exchange(
    args: &ExchangeArgs,
    topology: &Topology,
    parts: &[Vec<RecordBatch>],
    way: Way,
) -> Result<(f64, (Columns, Columns))> {
    let network =
        args.network.map(|rate| Network { bytes_per_second: Some(rate.get() as f64 * 1e6), ..Network::default() });
    let endpoints = in_process(&Arc::new(topology.clone()), network);
    let Some(schema): Option<SchemaRef> = parts.iter().flatten().next().map(RecordBatch::schema) else {
        return Err(exec_datafusion_err!("There are no rows: raise --millions."));
    };
    let barrier = Barrier::new(parts.len());
    let ranks =
        on_each(endpoints.iter().zip(parts).collect(), |(endpoint, batches): (&Arc<Endpoint>, &Vec<RecordBatch>)| {
            let spec = ShuffleSpec {
                number: 0,
                schema: schema.clone(),
                keys: vec![0],
                null_equal: false,
                levels: way.levels,
                is_compressed: way.is_compressed,
                round_bytes: args.round as usize * 1_000_000,
            };
            let input = stream::iter(batches.clone().into_iter().map(Ok::<_, overspill_exchange::Error>));
            let shuffle = spec.start(&Job::begin(endpoint, JobId(0)), input).map_err(failed)?;
            barrier.wait();
            let started = Instant::now();
            let rows = shuffle.output.try_fold(0, async |rows, batch: RecordBatch| Ok(rows + batch.num_rows()));
            // The receiver has a thread of its own, as an operator above would.
            let (_, rows) = std::thread::scope(|scope| {
                let sending = scope.spawn(|| block_on(shuffle.driver));
                let rows = block_on(rows);
                sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and_then(|()| Ok(((), rows?)))
            })
            .map_err(failed)?;
            let exchanged: Vec<Exchanged> = shuffle.metrics.iter().map(|level| level.exchanged()).collect();
            Ok((started.elapsed().as_secs_f64(), rows, exchanged))
        })?;
    let expected: usize = parts.iter().flatten().map(RecordBatch::num_rows).sum();
    let arrived: usize = ranks.iter().map(|(_, rows, _)| rows).sum();
    if arrived != expected {
        return Err(exec_datafusion_err!("{arrived} rows arrived of {expected}."));
    }
    let add = |sum: Columns, more: Columns| Columns {
        messages: sum.messages + more.messages,
        bytes: sum.bytes + more.bytes,
        sent_bytes: sum.sent_bytes + more.sent_bytes,
    };
    let levels = ranks.iter().flat_map(|(.., levels)| levels);
    let sent = levels.fold((Columns::default(), Columns::default()), |(across, within), level| {
        (add(across, level.across), add(within, level.within))
    });
    Ok((ranks.iter().map(|(seconds, ..)| *seconds).fold(0.0, f64::max), sent))
}

/// The table.
struct Report<'a> {
    args: &'a ExchangeArgs,
    nodes: usize,
    rows: usize,
    bytes: usize,
    copy: f64,
    measured: Vec<Measured>,
}

impl Report<'_> {
    fn json(&self) -> Json {
        let columns = |columns: Columns| json!({ "messages": columns.messages, "bytes": columns.bytes, "sent_bytes": columns.sent_bytes });
        let ways = self.measured.iter().map(|measured| {
            json!({
                "levels": if measured.way.levels == Levels::One { 1 } else { 2 },
                "compressed": measured.way.is_compressed,
                "seconds": measured.seconds,
                "across": columns(measured.across),
                "within": columns(measured.within),
            })
        });
        json!({
            "ranks": self.args.ranks,
            "nodes": self.nodes,
            "rows_of": value_name(&self.args.rows),
            "rows": self.rows,
            "bytes": self.bytes,
            "round_bytes": u64::from(self.args.round) * 1_000_000,
            "network_bytes_per_second": self.args.network.map(|rate| rate.get() as f64 * 1e6),
            "copy_seconds": self.copy,
            "ways": ways.collect::<Vec<_>>(),
        })
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let rate = |seconds: f64| self.bytes as f64 / seconds / 1e9;
        writeln!(
            f,
            "{} million rows, {}, among {} ranks on {} nodes, all in this process. Copied once by all ranks: {:.2} GB/s.",
            (self.rows as f64 / 1e6).round(),
            size(self.bytes as u64),
            self.args.ranks,
            self.nodes,
            rate(self.copy),
        )?;
        writeln!(f, "\n{:<24} {:>8} {:>8} {:>22} {:>22}", "", "s", "GB/s", "across nodes", "within nodes")?;
        for Measured { way, seconds, across, within } in &self.measured {
            let cell = |columns: &Columns| format!("{} messages, {}", columns.messages, size(columns.sent_bytes));
            let (name, across, within) = (way.name(), cell(across), cell(within));
            writeln!(f, "{name:<24} {seconds:>8.3} {:>8.2} {across:>22} {within:>22}", rate(*seconds))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_its_messages() {
        let args = ExchangeArgs {
            ranks: NonZeroUsize::new(4).unwrap(),
            ranks_per_node: NonZeroUsize::new(2),
            rows: ExchangeRows::Lineitem,
            millions: 0.02,
            round: 100,
            network: NonZeroUsize::new(1000),
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
