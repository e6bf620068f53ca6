//! The experiment `overspill bench spill`: the cost of a join whose state exceeds the memory limit.
//!
//! A table r of 16-byte rows is joined with a table s of 48-byte rows by sparse keys. Every row of s matches one row of r.
//! Each run is a separate process, so that its peak memory can be measured, and the compared runs alternate.

mod disk;
mod process;
mod report;
mod work;

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use datafusion::common::{Result, exec_err};

use crate::datagen::{MOST_SCALE, TablePair, check_scale, scaled, thread_count};
use crate::process::program;
use crate::report::{sql_text, tell, write_file};
use disk::DiskRate;
use process::{DuckDb, Overspill, Run};
use work::Work;

/// Rows of either table at scale 1.
const ROWS: u64 = 20_000_000;

/// Eight-byte columns beside the key: rows of 16 and of 48 bytes.
const BUILD_PAYLOADS: usize = 1;
const PROBE_PAYLOADS: usize = 5;

/// Bytes written to measure the disk if nothing was spilled.
const DISK_SAMPLE: u64 = 256 << 20;

/// The arguments of `overspill bench spill`.
#[derive(Debug, Clone, Args)]
pub struct SpillArgs {
    /// Shrinks or grows the tables of 20 million rows each
    #[arg(long, default_value_t = 1.0, value_name = "F")]
    pub scale: f64,

    /// The memory limit that the join outgrows
    #[arg(long, default_value = "300MB", value_name = "SIZE")]
    pub memory_limit: String,

    /// The number of runs; the table shows medians
    #[arg(long, default_value = "3", value_name = "N")]
    pub runs: NonZeroUsize,

    /// The number of threads of both engines [default: one per processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,

    /// The directory of the generated tables, which later runs use again
    #[arg(long, default_value = "overspill-bench-data", value_name = "DIR")]
    pub dir: PathBuf,

    /// The directory to which both engines spill, on the disk that is measured [default: a directory in --dir]
    #[arg(long, value_name = "DIR")]
    pub temp_dir: Option<PathBuf>,

    /// A Python interpreter that has DuckDB, for the same query
    #[arg(long, value_name = "PATH")]
    pub duckdb_python: Option<PathBuf>,

    /// Leave out the comparison with DataFusion's own join when nothing spills
    #[arg(long)]
    pub skip_work: bool,

    /// Write all numbers to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Fail when a bound is missed
    #[arg(long)]
    pub check: bool,

    /// The overspill program to measure [default: this one]
    #[arg(long, value_name = "PATH", hide = true)]
    pub program: Option<PathBuf>,
}

struct Figures {
    rows: u64,
    threads: usize,
    memory_limit: String,
    ample: Vec<Run>,
    limited: Vec<Run>,
    /// DuckDB's version and runs, or a sentence why there are none.
    duckdb: Result<(String, Vec<Run>), String>,
    /// Bytes that the join spilled under the limit.
    spilled: u64,
    disk: DiskRate,
    work: Option<Work>,
}

/// Runs the experiment and prints its table.
///
/// # Errors
/// When a run fails, answers differ, files are left behind, or `--check` is given and a bound is missed.
pub fn run(args: &SpillArgs) -> Result<()> {
    run_to(args, &mut std::io::stdout())
}

fn run_to(args: &SpillArgs, out: &mut dyn Write) -> Result<()> {
    check_scale(args.scale, MOST_SCALE)?;
    let rows = scaled(ROWS, args.scale);
    let figures = measure(args, rows)?;
    // Ignore write errors, as the reader may have closed the output.
    _ = out.write_all(report::table(&figures).as_bytes());
    if let Some(path) = &args.json {
        write_file(path, &format!("{:#}\n", report::json(&figures)))?;
    }
    if args.check && !report::bounds(&figures).iter().all(|bound| bound.met) {
        return exec_err!("A bound of the experiment was missed.");
    }
    Ok(())
}

fn measure(args: &SpillArgs, rows: u64) -> Result<Figures> {
    let threads = thread_count(args.threads);
    let program = program(args.program.as_deref())?;
    let tables = tables_in(&args.dir.join("tables"), rows, args.threads)?;
    let temp_root = args.temp_dir.clone().unwrap_or_else(|| args.dir.join("temp"));
    std::fs::create_dir_all(&temp_root)?;
    // A directory of our own, so that anything left in it was left by the runs.
    let temp = tempfile::Builder::new().prefix("bench-").tempdir_in(&temp_root)?;
    let overspill = Overspill { program, threads, temp: temp.path().to_path_buf() };
    let sql = query(&tables);
    let limit = args.memory_limit.as_str();

    tell("measuring the bytes that spill");
    let spilled = overspill.spilled_bytes(&sql, limit)?;
    let mut duckdb = DuckDb::find(args.duckdb_python.as_deref(), threads, temp.path());
    let (mut ample, mut limited, mut in_duckdb) = (vec![], vec![], vec![]);
    for number in 1..=args.runs.get() {
        tell(&format!("run {number} of {}", args.runs));
        ample.push(overspill.run(&sql, None, &[])?);
        limited.push(overspill.run(&sql, Some(limit), &[])?);
        if let Ok(engine) = &duckdb {
            match engine.run(&sql, limit) {
                Ok(run) => in_duckdb.push(run),
                // DuckDB's failure is a result, too.
                Err(error) => duckdb = Err(format!("DuckDB did not finish under {limit}: {}", error.message())),
            }
        }
    }
    let answer = &ample[0].answer;
    for run in ample.iter().chain(&limited).chain(&in_duckdb) {
        if run.answer != *answer {
            return exec_err!("The answers differ: {answer} and {}. The query is {sql}", run.answer);
        }
    }
    tell("measuring the disk");
    let disk = DiskRate::measure(temp.path(), if spilled == 0 { DISK_SAMPLE } else { spilled })?;
    let work = if args.skip_work {
        None
    } else {
        tell("comparing with DataFusion's join");
        Some(work::compare(&overspill, args.runs.get(), &sql, |shrunk| {
            let rows = (rows / shrunk).max(1);
            Ok(query(&tables_in(&args.dir.join("tables"), rows, args.threads)?))
        })?)
    };
    Ok(Figures {
        rows,
        threads,
        memory_limit: args.memory_limit.clone(),
        ample,
        limited,
        duckdb: duckdb.map(|duckdb| (duckdb.version, in_duckdb)),
        spilled,
        disk,
        work,
    })
}

/// Generates the two tables in a directory named after their size, and returns it.
fn tables_in(dir: &Path, rows: u64, threads: Option<NonZeroUsize>) -> Result<PathBuf> {
    let dir = dir.join(rows.to_string());
    let pair = TablePair {
        sparse: true,
        build_payloads: BUILD_PAYLOADS,
        probe_payloads: PROBE_PAYLOADS,
        ..TablePair::of_rows(rows, rows)
    };
    pair.write_in(&dir, threads)?;
    Ok(dir)
}

/// A join with all columns needed above it, and an answer of one row.
fn query(tables: &Path) -> String {
    let sums: Vec<String> = (1..=PROBE_PAYLOADS)
        .map(|number| format!("sum(s.payload{})", if number == 1 { String::new() } else { number.to_string() }))
        .collect();
    format!(
        "SELECT count(*), sum(r.payload), {} FROM {} r JOIN {} s ON r.key = s.key",
        sums.join(", "),
        sql_text(&tables.join("r.parquet")),
        sql_text(&tables.join("s.parquet"))
    )
}

#[cfg(test)]
mod tests;
