//! Reports of the experiment: a table for people, and JSON for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Figures;
use super::process::Run;
use super::work::Counter;
use crate::report::{median, size, slow_build};

/// Under the limit, the join may take this multiple of its time with ample memory …
const AMPLE_FACTOR: f64 = 2.0;

/// … or that time plus this multiple of the disk's time for the spilled bytes, whichever is larger.
const DISK_FACTOR: f64 = 1.3;

/// With nothing spilled, the join may take this multiple of the instructions of DataFusion's.
const WORK_FACTOR: f64 = 1.02;

/// A bound, and whether it was met.
pub(super) struct Bound {
    name: &'static str,
    /// The bound and the result, in the words of the table.
    sentence: String,
    measured: f64,
    most: f64,
    pub(super) met: bool,
}

impl Bound {
    fn new(name: &'static str, measured: f64, most: f64, sentence: String) -> Self {
        Self { name, sentence, measured, most, met: measured <= most }
    }
}

fn seconds(runs: &[Run]) -> f64 {
    median(runs.iter().map(|run| run.seconds).collect()).unwrap_or(f64::NAN)
}

fn peak_memory(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.peak_memory).max().unwrap_or(0)
}

pub(super) fn bounds(figures: &Figures) -> Vec<Bound> {
    let ample = seconds(&figures.ample);
    let limited = seconds(&figures.limited);
    let by_disk = ample + DISK_FACTOR * figures.spilled as f64 / figures.disk.bytes_per_second();
    let most = by_disk.max(AMPLE_FACTOR * ample);
    let mut bounds = vec![Bound::new(
        "time",
        limited,
        most,
        format!(
            "{limited:.2} s under the limit, at most {most:.2} s: the larger of {AMPLE_FACTOR} x the ample time ({:.2} \
             s) and the ample time + {DISK_FACTOR} x bytes spilled / disk rate ({by_disk:.2} s)",
            AMPLE_FACTOR * ample
        ),
    )];
    if let Ok((_, runs)) = &figures.duckdb {
        let duckdb = seconds(runs);
        let sentence = format!("{limited:.2} s under the limit, at most DuckDB's {duckdb:.2} s under the same");
        bounds.push(Bound::new("DuckDB", limited, duckdb, sentence));
    }
    // CPU time varies by more than the bound allows.
    if let Some(work) = figures.work.as_ref().filter(|work| work.counter != Counter::CpuTime) {
        let most = WORK_FACTOR * work.stock;
        let sentence = format!(
            "{:.4} x the instructions of DataFusion's join with nothing spilled, at most {WORK_FACTOR} x",
            work.overspill / work.stock
        );
        bounds.push(Bound::new("work", work.overspill, most, sentence));
    }
    bounds
}

pub(super) fn table(figures: &Figures) -> String {
    let limit = &figures.memory_limit;
    let mut rows =
        vec![("Overspill, ample memory".to_owned(), &figures.ample), (format!("Overspill, {limit}"), &figures.limited)];
    let mut notes = vec![];
    match &figures.duckdb {
        Ok((version, runs)) => rows.push((format!("DuckDB {version}, {limit}"), runs)),
        Err(reason) => notes.push(reason.clone()),
    }
    let mut text = format!(
        "A join of {0} rows of 16 bytes with {0} rows of 48 bytes, sparse keys, {1} threads, medians of {2} runs\n\n",
        figures.rows,
        figures.threads,
        figures.ample.len()
    );
    _ = writeln!(text, "{:<28} {:>9} {:>9} {:>13}", "", "seconds", "user s", "peak memory");
    for (name, runs) in rows {
        let cpu = median(runs.iter().map(|run| run.user_seconds).collect()).unwrap_or(f64::NAN);
        _ = writeln!(text, "{name:<28} {:>9.2} {cpu:>9.2} {:>13}", seconds(runs), size(peak_memory(runs)));
    }
    let disk = &figures.disk;
    _ = writeln!(
        text,
        "\nSpilled: {}.\nDisk: {} written and forced to the disk in {:.2} s, read again, from the operating system's \
         cache where it fits, in {:.2} s: {} a second.",
        size(figures.spilled),
        size(disk.bytes),
        disk.write.as_secs_f64(),
        disk.read.as_secs_f64(),
        size(disk.bytes_per_second() as u64)
    );
    if let Some(work) = &figures.work {
        _ = writeln!(
            text,
            "Work with nothing spilled{}: {:.6e} on Overspill's join, {:.6e} on DataFusion's ({}): {:+.2} %.",
            if work.shrunk == 1 { String::new() } else { format!(", tables a {}th as large", work.shrunk) },
            work.overspill,
            work.stock,
            work.counter.describe(),
            100.0 * (work.overspill / work.stock - 1.0)
        );
    }
    notes.extend(slow_build().map(str::to_owned));
    for note in notes {
        _ = writeln!(text, "{note}");
    }
    text.push('\n');
    for bound in bounds(figures) {
        _ = writeln!(text, "{:<7} {}: {}.", if bound.met { "met" } else { "MISSED" }, bound.name, bound.sentence);
    }
    text
}

/// Every figure, times in seconds and sizes in bytes.
pub(super) fn json(figures: &Figures) -> Value {
    let runs = |runs: &[Run]| -> Value {
        json!({
            "median_seconds": seconds(runs),
            "runs": runs.iter().map(|run| json!({
                "seconds": run.seconds,
                "user_seconds": run.user_seconds,
                "peak_memory_bytes": run.peak_memory,
            })).collect::<Vec<_>>(),
        })
    };
    let duckdb = match &figures.duckdb {
        Ok((version, measured)) => json!({ "version": version, "limited": runs(measured) }),
        Err(reason) => json!({ "missing": reason }),
    };
    let work = figures.work.as_ref().map(|work| {
        json!({
            "counted": work.counter.describe(),
            "rows": (figures.rows / work.shrunk).max(1),
            "overspill": work.overspill,
            "datafusion": work.stock,
        })
    });
    json!({
        "experiment": "spill",
        "version": env!("CARGO_PKG_VERSION"),
        "debug_assertions": cfg!(debug_assertions),
        "build_rows": figures.rows,
        "probe_rows": figures.rows,
        "threads": figures.threads,
        "memory_limit": figures.memory_limit,
        "answer": figures.ample.first().map(|run| &run.answer),
        "overspill": { "ample": runs(&figures.ample), "limited": runs(&figures.limited) },
        "duckdb": duckdb,
        "spilled_bytes": figures.spilled,
        "disk": {
            "bytes": figures.disk.bytes,
            "write_and_fsync_seconds": figures.disk.write.as_secs_f64(),
            "read_seconds": figures.disk.read.as_secs_f64(),
            "bytes_per_second": figures.disk.bytes_per_second(),
        },
        "work": work,
        "bounds": bounds(figures).iter().map(|bound| json!({
            "name": bound.name,
            "measured": bound.measured,
            "at_most": bound.most,
            "met": bound.met,
        })).collect::<Vec<_>>(),
    })
}
