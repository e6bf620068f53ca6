//! The experiment `overspill bench advisor`: compares the choices of `auto` for joins in memory with the best fixed settings.

mod indexes;

use std::fmt::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill::OverspillRuntime;
use overspill_join::hash_table::TableChoice;
use overspill_join::radix::ProbeRegions;
use overspill_machine::topology::Topology;
use serde_json::{Value, json};

use crate::datagen::TablePair;
use crate::operator::{How, MEMORY_PER_TABLES, Tables};
use crate::report::{failed, median, slow_build, tell, write_file};

/// The allowed time of a choice, as a multiple of the best.
const TOLERANCE: f64 = 1.1;

/// The arguments of `overspill bench advisor`.
#[derive(Debug, Clone, Args)]
pub struct AdvisorArgs {
    /// Skip joins whose tables have more tuples together; with --index, tables of as many at most
    #[arg(long, default_value_t = 1 << 26, value_name = "N")]
    pub max_tuples: u64,

    /// The number of runs of each join and strategy, which take turns; the table shows medians
    #[arg(long, default_value = "5", value_name = "N")]
    pub runs: NonZeroUsize,

    /// The number of threads [default: one per processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,

    /// Fail unless every choice takes at most 1.1 times as long as the best; with --index, unless 95 % take at most 1.15 times as
    /// long, and none over twice
    #[arg(long)]
    pub check: bool,

    /// Compare queries over indexed tables in place of join strategies: with `overspill.indexes` as never, always and auto
    #[arg(long)]
    pub index: bool,

    /// The program that runs the queries of --index [default: this one]
    #[arg(long, value_name = "FILE", requires = "index")]
    pub program: Option<PathBuf>,

    /// Write the table's numbers to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A join method that users can select with settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fixed {
    /// `overspill.strategy` and `overspill.hash_table`.
    name: &'static str,
    partitions: bool,
    table: TableChoice,
}

/// `auto` uses one of the first two for a build side that fits memory.
const FIXED: [Fixed; 5] = [
    Fixed { name: "no_partition", partitions: false, table: TableChoice::Perfect },
    Fixed { name: "radix", partitions: true, table: TableChoice::Perfect },
    Fixed { name: "no_partition, linear_probing", partitions: false, table: TableChoice::LinearProbing },
    Fixed { name: "radix, linear_probing", partitions: true, table: TableChoice::LinearProbing },
    Fixed { name: "no_partition, unchained", partitions: false, table: TableChoice::Unchained },
];

const DENSE: TablePair = TablePair::of_rows(0, 0);

/// Names, and properties shared by several joins of the grid.
const KINDS: [(&str, TablePair); 6] = [
    ("dense, 16 bytes", DENSE),
    ("dense, 8 bytes", TablePair { tuple: 8, ..DENSE }),
    ("dense, a tenth matches", TablePair { match_rate: 0.1, ..DENSE }),
    ("dense, Zipf 1", TablePair { zipf: 1.0, ..DENSE }),
    ("sparse", TablePair { sparse: true, ..DENSE }),
    ("sparse, a tenth matches, Zipf 1.5", TablePair { sparse: true, zipf: 1.5, match_rate: 0.1, ..DENSE }),
];

/// Sizes of r in tuples.
const BUILD: [u64; 7] = [1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26];
/// Tuples of s per tuple of r.
const RATIOS: [u64; 4] = [1, 4, 8, 32];

/// A join of the grid, with the seconds of each method in the order of [`FIXED`].
#[derive(Debug)]
struct Point {
    kind: &'static str,
    build_rows: u64,
    probe_rows: u64,
    /// `None` for a method that resolved to an earlier one.
    seconds: Vec<Option<f64>>,
    /// The seconds of the choice of `auto`, as a multiple of the best.
    of_best: f64,
}

/// Measures the grid and writes a table.
///
/// # Errors
/// If memory runs out, an answer is wrong, or `--check` is given and a choice is not good enough.
pub(crate) fn run(args: &AdvisorArgs, out: &mut dyn std::io::Write) -> Result<()> {
    if args.index {
        return indexes::run(args, out);
    }
    let topology = Topology::of_this_machine();
    let threads = args.threads.map_or(topology.cpu.threads.max(1), NonZeroUsize::get);
    let mut points = vec![];
    for (kind, properties) in &KINDS {
        for (build_rows, ratio) in BUILD.into_iter().flat_map(|build| RATIOS.map(|ratio| (build, ratio))) {
            let probe_rows = build_rows * ratio;
            let bytes = (build_rows + probe_rows) * u64::from(properties.tuple) * MEMORY_PER_TABLES;
            let fits = topology.memory.bytes.is_none_or(|memory| bytes <= memory);
            if build_rows + probe_rows <= args.max_tuples && fits {
                tell(&format!("{kind}: {build_rows} x {probe_rows}"));
                let pair = TablePair { build_rows, probe_rows, ..properties.clone() };
                points.push(measure(kind, &pair, threads, args.runs.get())?);
            }
        }
    }
    if points.is_empty() {
        return exec_err!("No join of the grid has at most {} tuples; raise --max-tuples.", args.max_tuples);
    }
    if let Some(path) = &args.json {
        write_file(path, &format!("{:#}\n", numbers(&points)))?;
    }
    let mut text = format!(
        "Joins in memory each way, {threads} threads, medians of {} runs; milliseconds\n{}\n",
        args.runs,
        topology.cpu.model.as_deref().unwrap_or("a CPU of unknown model")
    );
    text.extend(slow_build().map(|line| format!("{line}\n")));
    let good = points.iter().filter(|point| point.of_best <= TOLERANCE).count();
    table(&points, &mut text).map_err(failed)?;
    let worst = points.iter().map(|point| point.of_best).fold(1.0, f64::max);
    let verdict = format!(
        "auto takes at most {TOLERANCE} times as long as the best way at {good} of {} points; the most is {worst:.2}.",
        points.len()
    );
    writeln!(out, "{text}{verdict}").map_err(|error| exec_datafusion_err!("cannot write the table: {error}"))?;
    if args.check && good < points.len() {
        return exec_err!("A choice is not good enough: {verdict}");
    }
    Ok(())
}

fn numbers(points: &[Point]) -> Value {
    let ways: Vec<_> = FIXED.iter().map(|way| way.name).collect();
    let point = |Point { kind, build_rows, probe_rows, seconds, of_best }: &Point| {
        let seconds: Value = ways.iter().copied().zip(seconds.iter().copied()).collect();
        json!({ "kind": kind, "build_rows": build_rows, "probe_rows": probe_rows, "seconds": seconds, "auto_of_best": of_best })
    };
    points.iter().map(point).collect()
}

fn table(points: &[Point], text: &mut String) -> std::fmt::Result {
    let mut kind = "";
    for point in points {
        if point.kind != kind {
            kind = point.kind;
            write!(text, "\n{kind:<36}")?;
            FIXED.iter().try_for_each(|way| write!(text, "  {:>28}", way.name))?;
            writeln!(text, "  auto of best")?;
        }
        write!(text, "{:>17} x {:<16}", point.build_rows, point.probe_rows)?;
        for seconds in &point.seconds {
            match seconds {
                Some(seconds) => write!(text, "  {:>28.3}", seconds * 1e3)?,
                None => write!(text, "  {:>28}", "the same")?,
            }
        }
        writeln!(text, "  {:>12.2}", point.of_best)?;
    }
    writeln!(text)
}

fn measure(kind: &'static str, pair: &TablePair, threads: usize, runs: usize) -> Result<Point> {
    let TablePair { build_rows, probe_rows, sparse, .. } = *pair;
    let tables = Tables::generate(pair, threads)?;
    let advised = OverspillRuntime::of_process().machine().probe_regions(None, threads);
    let is_advised =
        advised.is_some() && tables.join(threads, How { probe_regions: advised, ..How::default() })?.is_radix;
    let mut seconds = vec![vec![]; FIXED.len()];
    let expected = tables.expected(threads)?;
    let mut is_partitioned = [false; FIXED.len()];
    // One extra run: the first run faults in memory for the others. The methods take turns in order.
    for run in 0..=runs {
        for place in 0..FIXED.len() {
            let number = (run + place) % FIXED.len();
            let way = &FIXED[number];
            let regions = way.partitions.then(|| ProbeRegions::of_this_machine(0));
            let joined =
                tables.join(threads, How { probe_regions: regions, table_choice: way.table, ..How::default() })?;
            joined.check(expected)?;
            is_partitioned[number] = joined.is_radix;
            if run > 0 {
                seconds[number].push(joined.seconds.build + joined.seconds.probe);
            }
        }
    }
    // A method that resolved to an earlier method has the earlier one's measurements.
    let is_other = |number: usize| {
        let Fixed { partitions, table, .. } = FIXED[number];
        is_partitioned[number] == partitions && (!sparse || table != TableChoice::LinearProbing)
    };
    let seconds: Vec<Option<f64>> = (0..FIXED.len())
        .zip(seconds)
        .map(|(number, seconds)| median(seconds).filter(|_| number == 0 || is_other(number)))
        .collect();
    let best = seconds.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let of_best = seconds[usize::from(is_advised)].map_or(f64::NAN, |chosen| chosen / best);
    Ok(Point { kind, build_rows, probe_rows, of_best, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_join_of_the_grid_is_measured_each_way() {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("grid.json");
        let args = AdvisorArgs {
            max_tuples: 40_000,
            runs: NonZeroUsize::MIN,
            threads: NonZeroUsize::new(2),
            check: false,
            index: false,
            program: None,
            json: Some(json.clone()),
        };
        let mut text = vec![];
        run(&args, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let points: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        let points = points.as_array().unwrap();
        // Each kind has 1024 tuples with 1, 4, 8 and 32 times as many, and 16384 tuples with as many.
        assert_eq!(points.len(), KINDS.len() * 5);
        for point in points {
            let seconds: Vec<Option<f64>> = FIXED.iter().map(|way| point["seconds"][way.name].as_f64()).collect();
            // Sparse keys always use linear probing.
            let is_sparse = point["kind"].as_str().unwrap().starts_with("sparse");
            let there: Vec<_> = seconds.iter().map(Option::is_some).collect();
            assert_eq!([there[0], there[2], there[4]], [true, !is_sparse, true], "{point}");
            // The smallest tables fit a core's cache anywhere, so that no rows are partitioned. Whether the others do is the machine's.
            let is_small = point["build_rows"] == 1024;
            assert!(!is_small || !(there[1] || there[3]), "{point}");
            let best = seconds.iter().flatten().copied().fold(f64::INFINITY, f64::min);
            assert!((point["auto_of_best"].as_f64().unwrap() - seconds[0].unwrap() / best).abs() < 1e-9);
        }
        assert!(text.contains(&format!("of {} points", points.len())) && text.contains("16384 x 16384"), "{text}");
        let few = run(&AdvisorArgs { max_tuples: 10, ..args }, &mut vec![]).unwrap_err().to_string();
        assert!(few.contains("--max-tuples"), "{few}");
    }
}
