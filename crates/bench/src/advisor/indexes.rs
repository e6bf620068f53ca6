//! `overspill bench advisor --index`: joins and filters over indexed tables with the index, without it, and by the choice of `auto`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use overspill_machine::topology::Topology;
use serde_json::{Value, json};

use super::AdvisorArgs;
use crate::datagen::{self, Compression, tpch_tables};
use crate::engines::{Engine, OVERSPILL, Session, Terms, VERSION};
use crate::process::program;
use crate::report::{failed, machine, median, slow_build, sql_text, tell, write_file};
use crate::tpch;

/// The allowed time of a choice, as a multiple of the best, and the share of points that must keep to it.
const TOLERANCE: f64 = 1.15;
const MOST_MISSES: f64 = 0.05;
/// No choice may take more than this multiple of the best.
const NEVER_OVER: f64 = 2.0;

/// The values of `overspill.indexes` that are compared.
const WAYS: [&str; 3] = ["never", "always", "auto"];

/// A way that takes this multiple of the best in its first run is not run again.
const HOPELESS: f64 = 4.0;

/// A query runs more often than `--runs` says until its runs together take `ENOUGH` seconds, unless it says 1. `MOST_RUNS` limits these runs.
const ENOUGH: f64 = 2.0;
const MOST_RUNS: usize = 150;

/// How long the engine may take for all of it.
const PATIENCE: Duration = Duration::from_secs(4 * 3600);

/// The distance between neighbouring keys.
const GAP: u64 = 1_000_003;

/// Shares of the rows of r that s has, or that a filter passes.
const SHARES: [f64; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0];

/// Queries of TPC-H that join many rows of lineitem with some of orders.
const TPCH: [usize; 2] = [4, 12];

/// A table r with a unique key k and a payload p.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    /// A power of two.
    rows: u64,
    is_sorted: bool,
    is_file: bool,
}

/// Rows of tables in memory and in Parquet files.
const ROWS: [(u64, bool); 3] = [(1 << 22, false), (1 << 25, false), (1 << 24, true)];

impl Layout {
    /// The tables, of at most this many rows.
    fn all(most: u64) -> Vec<Self> {
        let most = 1 << most.max(1).ilog2();
        let mut all: Vec<_> = ROWS
            .into_iter()
            .flat_map(|(rows, is_file)| {
                [true, false].map(|is_sorted| Self { rows: rows.min(most), is_sorted, is_file })
            })
            .collect();
        all.dedup();
        all
    }

    fn name(&self) -> String {
        let place = if self.is_file { "in Parquet" } else { "in memory" };
        let order = if self.is_sorted { "sorted" } else { "shuffled" };
        format!("2^{} rows {place}, {order}", self.rows.ilog2())
    }
}

/// A query, with the milliseconds of each way.
#[derive(Debug)]
struct Point {
    table: String,
    query: String,
    milliseconds: [f64; WAYS.len()],
    /// The time of `auto` as a multiple of that of the better of the two others: the median over those rounds that both ran in. What
    /// else the machine did in a round slowed both.
    of_best: f64,
}

impl Point {
    /// The times of all rounds, in seconds. A way did not run in every round.
    fn of(table: &str, query: String, rounds: &[[Option<f64>; WAYS.len()]]) -> Self {
        let of_way = |way: usize| median(rounds.iter().filter_map(|round| round[way]).collect());
        let milliseconds = [0, 1, 2].map(|way| of_way(way).unwrap_or(f64::INFINITY) * 1e3);
        let [never, always, auto] = milliseconds;
        let best = usize::from(always < never);
        let ratios = rounds.iter().filter_map(|round| Some(round[2]? / round[best]?)).collect();
        let of_best = median(ratios).unwrap_or(auto / milliseconds[best]);
        Self { table: table.to_owned(), query, milliseconds, of_best }
    }
}

/// Measures the grid and writes a table.
///
/// # Errors
/// If an answer depends on the index, or `--check` is given and choices are not good enough.
pub(super) fn run(args: &AdvisorArgs, out: &mut dyn std::io::Write) -> Result<()> {
    let topology = Topology::of_this_machine();
    let threads = args.threads.map_or(topology.cpu.threads.max(1), std::num::NonZeroUsize::get);
    let folder = tempfile::tempdir()
        .map_err(|error| exec_datafusion_err!("No directory for the tables can be made: {error}"))?;
    let terms = Terms { threads, patience: PATIENCE, dir: folder.path() };
    let program = program(args.program.as_deref())?;
    let engine = Engine::overspill(OVERSPILL, VERSION, program, &[]);
    let mut points = Vec::new();
    // The last tables are those of TPC-H.
    for layout in Layout::all(args.max_tuples).iter().map(Some).chain([None]) {
        let (mut session, _) = engine.start(&terms)?;
        match layout {
            Some(layout) => measure_layout(&mut session, layout, folder.path(), args.runs.get(), &mut points)?,
            None => measure_tpch(&mut session, args, folder.path(), &mut points)?,
        }
        session.end()?;
        // What has been measured is kept if the rest fails.
        if let Some(path) = &args.json {
            write_file(path, &format!("{:#}\n", numbers(&points)))?;
        }
    }
    let mut text = format!(
        "Queries with and without an index, {}, {threads} threads, medians of {} runs and more; milliseconds\n",
        machine(&topology),
        args.runs
    );
    text.extend(slow_build().map(|line| format!("{line}\n")));
    table(&points, &mut text).map_err(failed)?;
    let good = points.iter().filter(|point| point.of_best <= TOLERANCE).count();
    let worst = points.iter().map(|point| point.of_best).fold(1.0, f64::max);
    let verdict = format!(
        "auto takes at most {TOLERANCE} times as long as the best way at {good} of {} points; the most is {worst:.2}.",
        points.len()
    );
    writeln!(out, "{text}{verdict}").map_err(|error| exec_datafusion_err!("cannot write the table: {error}"))?;
    let misses = (points.len() - good) as f64 / points.len() as f64;
    if args.check && (misses > MOST_MISSES || worst > NEVER_OVER) {
        return exec_err!("Choices are not good enough: {verdict}");
    }
    Ok(())
}

fn measure_layout(
    session: &mut Session,
    layout: &Layout,
    folder: &Path,
    runs: usize,
    points: &mut Vec<Point>,
) -> Result<()> {
    let Layout { rows, is_sorted, is_file } = *layout;
    let name = &layout.name();
    tell(name);
    // There is a power of two of rows. An odd factor permutes them, so that each key is there once.
    let key = if is_sorted { "value".to_owned() } else { format!("(value * {}) % {rows}", odd(rows, GOLDEN)) };
    let select = format!("SELECT {key} * {GAP} AS k, value AS p FROM generate_series(0, {})", rows - 1);
    if is_file {
        let file = folder.join(if is_sorted { "sorted.parquet" } else { "shuffled.parquet" });
        session.execute(&format!("COPY ({select}) TO {}", sql_text(&file)))?;
        session.execute(&format!("CREATE EXTERNAL TABLE r STORED AS PARQUET LOCATION {}", sql_text(&file)))?;
    } else {
        session.execute(&format!("CREATE TABLE r AS {select}"))?;
    }
    // Both files lie in one folder, which knows indexes by their names.
    let index = if is_sorted { "of_sorted" } else { "of_shuffled" };
    session.execute(&format!("CREATE INDEX {index} ON r (k)"))?;
    for skewed in [false, true] {
        for share in SHARES {
            let count = (share * rows as f64) as u64;
            // Skew makes a difference where there are keys to repeat.
            if count == 0 || skewed && ![1e-4, 1e-2, 1.0].contains(&share) {
                continue;
            }
            let place = format!("(value * {}) % {rows}", odd(rows, SILVER));
            let place = if skewed { format!("CAST(power(({place}) / {rows}.0, 8) * {rows} AS BIGINT)") } else { place };
            session.execute(&format!(
                "CREATE TABLE s AS SELECT {place} * {GAP} AS k, value AS q FROM generate_series(0, {})",
                count - 1
            ))?;
            let what = if skewed { "skewed keys" } else { "keys" };
            let query = "SELECT count(*), sum(p), sum(q) FROM s JOIN r ON s.k = r.k";
            points.push(measure(session, name, format!("join with {count} {what}"), query, runs)?);
            session.execute("DROP TABLE s")?;
        }
    }
    for share in &SHARES[..SHARES.len() - 1] {
        let width = (share * rows as f64) as u64;
        if width > 0 {
            let from = rows / 3;
            let query = format!(
                "SELECT count(*), sum(p) FROM r WHERE k BETWEEN {} AND {}",
                from * GAP,
                (from + width - 1) * GAP
            );
            points.push(measure(session, name, format!("filter that {width} rows pass"), &query, runs)?);
        }
    }
    let keys: Vec<String> = (1..=10).map(|part| (rows * part / 11 * GAP).to_string()).collect();
    let query = format!("SELECT count(*), sum(p) FROM r WHERE k IN ({})", keys.join(", "));
    points.push(measure(session, name, "filter by a list of 10 keys".to_owned(), &query, runs)?);
    Ok(())
}

/// Multiples of these, without their whole part, are spread evenly. Those of one have nothing to do with those of the other.
const GOLDEN: f64 = 0.618_034;
const SILVER: f64 = 0.414_214;

/// An odd number near this share of the rows.
fn odd(rows: u64, share: f64) -> u64 {
    (rows as f64 * share) as u64 | 1
}

fn measure_tpch(session: &mut Session, args: &AdvisorArgs, folder: &Path, points: &mut Vec<Point>) -> Result<()> {
    const ROWS: f64 = 6e6;
    let tables = datagen::TablesArgs {
        scale: (args.max_tuples as f64 / ROWS).min(1.0),
        dir: PathBuf::from(folder),
        compression: Compression::Snappy,
        force: false,
        threads: args.threads,
    };
    datagen::generate_tpch(&tables, &mut std::io::sink())?;
    for name in tpch_tables() {
        let file = folder.join(format!("{name}.parquet"));
        session.execute(&format!("CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION {}", sql_text(&file)))?;
    }
    session.execute("CREATE INDEX lines ON lineitem (l_orderkey)")?;
    session.execute("CREATE INDEX orders ON orders (o_orderkey)")?;
    for number in TPCH {
        let query = tpch::SUITE.query_text(number)?.replace('\n', " ");
        let query = query.trim().trim_end_matches(';');
        points.push(measure(session, "TPC-H", format!("query {number}"), query, args.runs.get())?);
    }
    Ok(())
}

/// Runs a query each way, in turn.
fn measure(session: &mut Session, table: &str, query: String, sql: &str, runs: usize) -> Result<Point> {
    tell(&format!("{table}: {query}"));
    let mut rounds = Vec::new();
    let mut first = [f64::INFINITY; WAYS.len()];
    let mut answer: Option<Vec<String>> = None;
    // The first round faults in memory for the others.
    let mut run = 0;
    let mut last = runs;
    while run <= last {
        let mut round = [None; WAYS.len()];
        for place in 0..WAYS.len() {
            // Each way comes as often after each other one: what ran before leaves its data in the caches.
            let place = if run % 2 == 0 { place } else { WAYS.len() - place };
            let number = (run / 2 + place) % WAYS.len();
            // What is far behind is not the best, however often it runs.
            if run > 0 && first[number] > HOPELESS * first.iter().copied().fold(f64::INFINITY, f64::min) {
                continue;
            }
            session.execute(&format!("SET overspill.indexes = '{}'", WAYS[number]))?;
            let (took, rows) = session.rows(sql)?;
            match &answer {
                Some(answer) if *answer != rows => {
                    return exec_err!("The answer with overspill.indexes = {} is another: {sql}", WAYS[number]);
                }
                _ => answer = Some(rows),
            }
            round[number] = Some(took);
        }
        if run == 0 {
            first = round.map(|took| took.unwrap_or(f64::INFINITY));
            let best = first.iter().copied().fold(f64::INFINITY, f64::min);
            if runs > 1 {
                last = ((ENOUGH / best) as usize).clamp(runs, MOST_RUNS.max(runs));
            }
        } else {
            rounds.push(round);
        }
        run += 1;
    }
    // Of those far behind only the first run is known.
    let only_first = |way: usize| rounds.iter().all(|round: &[Option<f64>; WAYS.len()]| round[way].is_none());
    let firsts = [0, 1, 2].map(|way| only_first(way).then_some(first[way]));
    if firsts.iter().any(Option::is_some) {
        rounds.push(firsts);
    }
    Ok(Point::of(table, query, &rounds))
}

fn numbers(points: &[Point]) -> Value {
    let point = |point: &Point| {
        let ways: Value = WAYS.iter().copied().zip(point.milliseconds).collect();
        json!({ "table": point.table, "query": point.query, "milliseconds": ways, "auto_of_best": point.of_best })
    };
    points.iter().map(point).collect()
}

fn table(points: &[Point], text: &mut String) -> std::fmt::Result {
    let mut table = "";
    for point in points {
        if point.table != table {
            table = &point.table;
            write!(text, "\n{table:<36}")?;
            WAYS.iter().try_for_each(|way| write!(text, "  {way:>10}"))?;
            writeln!(text, "  auto of best")?;
        }
        write!(text, "{:<36}", point.query)?;
        point.milliseconds.iter().try_for_each(|time| write!(text, "  {time:>10.2}"))?;
        writeln!(text, "  {:>12.2}", point.of_best)?;
    }
    writeln!(text)
}
