//! Reports of the experiment: tables for people, JSON for programs, and a plot.

use std::fmt::Write;

use overspill_experiments::{Axis, Figure, SeriesSource};
use serde_json::{Value, json};

use super::{Contender, Figures, Join, Workload};
use crate::engines::{Engine, HOST, Missing, Target};
use crate::report::{list, median, size, slow_build, text};

/// The name of the experiment in its JSON.
pub(super) const EXPERIMENT: &str = "peers";

/// The allowed multiple of DataFusion's memory.
const MEMORY_FACTOR: f64 = 1.25;

/// Times are reported in milliseconds: a time that rounds to 0 counts as half a millisecond.
const LEAST_SECONDS: f64 = 0.0005;

/// The minimum work of a hash join of tables beyond the caches, in seconds.
struct Bound {
    /// Each row of both tables accesses one place of a hash table.
    random_access: f64,
    /// Reads both tables and sums their columns, as measured in Overspill without a join.
    scan: f64,
}

impl Bound {
    fn of(figures: &Figures, join: &Join) -> Self {
        let scans = join.overspill.runs().iter().filter_map(|run| run.scan_seconds).collect();
        Self { random_access: tuples(join) / figures.random_reads, scan: median(scans).unwrap_or(f64::NAN) }
    }

    fn seconds(&self) -> f64 {
        self.random_access + self.scan
    }
}

fn tuples(join: &Join) -> f64 {
    (join.tables.build_rows + join.tables.probe_rows) as f64
}

/// `None` without runs.
fn seconds(contender: &Contender) -> Option<f64> {
    median(contender.runs().iter().map(|run| run.seconds).collect()).map(|seconds| seconds.max(LEAST_SECONDS))
}

/// The peak memory of the run that took the most.
fn peak_memory(contender: &Contender) -> Option<u64> {
    contender.runs().iter().filter_map(|run| run.peak_memory).max()
}

/// Millions of tuples of both tables per second.
fn speed(join: &Join, seconds: f64) -> f64 {
    tuples(join) / seconds / 1e6
}

/// The fastest other engine, and its time as a multiple of Overspill's.
fn best_peer(join: &Join) -> Option<(&Engine, f64)> {
    let ours = seconds(&join.overspill)?;
    let peers = join.peers.iter().filter_map(|peer| Some((&peer.engine, seconds(peer)? / ours)));
    peers.min_by(|one, other| one.1.total_cmp(&other.1))
}

/// Overspill's memory as a multiple of DataFusion's.
fn memory_ratio(join: &Join) -> Option<f64> {
    let host = join.peers.iter().find(|peer| peer.engine.name == HOST)?;
    Some(peak_memory(&join.overspill)? as f64 / peak_memory(host)? as f64)
}

/// The bound's share of Overspill's time.
fn share_of_bound(figures: &Figures, join: &Join) -> Option<f64> {
    Some(Bound::of(figures, join).seconds() / seconds(&join.overspill)?)
}

pub(super) fn targets(figures: &Figures, join: &Join) -> Vec<Target> {
    let wanted = join.workload.target;
    let best = best_peer(join);
    let fast = best.map(|(_, ratio)| ratio >= wanted.ratio);
    let share = share_of_bound(figures, join);
    let near = wanted.or_bound.zip(share).map(|(wanted, share)| share >= wanted);
    let mut sentence = match best {
        Some((engine, ratio)) => {
            format!("{ratio:.2} x as fast as {}, the fastest of the others, at least {} x", engine.name, wanted.ratio)
        }
        None => format!("no other engine to compare with, at least {} x as fast is wanted", wanted.ratio),
    };
    if let Some((wanted, share)) = wanted.or_bound.zip(share) {
        _ = write!(sentence, "; or {:.0} % of the speed of the bound, at least {:.0} %", share * 100.0, wanted * 100.0);
    }
    let speed = Target {
        name: "speed",
        sentence,
        // Being near the bound suffices. Being far from it means nothing if there is no engine to compare with.
        met: if near == Some(true) { near } else { fast },
    };
    let ratio = memory_ratio(join);
    let memory = Target {
        name: "memory",
        sentence: match ratio {
            Some(ratio) => format!("{ratio:.2} x the peak memory of {HOST}, at most {MEMORY_FACTOR} x"),
            None => format!("no peak memory of {HOST} to compare with, at most {MEMORY_FACTOR} x is wanted"),
        },
        met: ratio.map(|ratio| ratio <= MEMORY_FACTOR),
    };
    vec![speed, memory]
}

/// What is printed above the tables.
pub(super) fn head(figures: &Figures, processors: usize) -> String {
    let mut text = format!(
        "SQL joins of tables in memory, {} threads, medians of {} runs\n{}; {:.0} M reads a second at random places in \
         huge pages\n",
        figures.threads,
        figures.runs,
        figures.machine,
        figures.random_reads / 1e6
    );
    let mut notes: Vec<String> = figures.missing.iter().map(|missing| missing.reason.clone()).collect();
    notes.extend(slow_build().map(str::to_owned));
    if figures.threads != processors {
        notes.push(format!("The bounds are those of all {processors} processors, not of {} threads.", figures.threads));
    }
    for note in notes {
        _ = writeln!(text, "{note}");
    }
    text
}

pub(super) fn table(figures: &Figures, join: &Join) -> String {
    let bound = Bound::of(figures, join);
    let mut text = format!("\n{}\n\n", join.workload.describe(&join.tables));
    let contenders = || std::iter::once(&join.overspill).chain(&join.peers);
    let width = contenders().map(|contender| contender.engine.title().len()).max().unwrap_or(0);
    _ = writeln!(text, "{:<width$} {:>9} {:>12} {:>13}", "", "seconds", "M tuples/s", "peak memory");
    let mut notes = vec![];
    for contender in contenders() {
        if let Err(reason) = &contender.runs {
            notes.push(reason.clone());
        }
        let Some(seconds) = seconds(contender) else { continue };
        let memory = peak_memory(contender).map_or_else(|| "-".to_owned(), size);
        let title = contender.engine.title();
        _ = writeln!(text, "{title:<width$} {seconds:>9.3} {:>12.1} {memory:>13}", speed(join, seconds));
        if contender.runs().iter().any(|run| run.peak_of_loading) {
            notes.push(format!("The peak memory of {} is that of loading as well.", contender.engine.name));
        }
    }
    _ = writeln!(text, "{:<width$} {:>9.3} {:>12.1}", "bound", bound.seconds(), speed(join, bound.seconds()));
    _ = writeln!(
        text,
        "\nThe bound is {:.3} s of random access and {:.3} s of reading both tables.",
        bound.random_access, bound.scan
    );
    if let Some(share) = share_of_bound(figures, join) {
        _ = writeln!(text, "Overspill has {:.0} % of the speed of the bound.", share * 100.0);
    }
    for note in notes {
        _ = writeln!(text, "{note}");
    }
    for target in targets(figures, join) {
        _ = writeln!(text, "{target}");
    }
    text
}

/// Every figure, times in seconds and sizes in bytes.
pub(super) fn json(figures: &Figures) -> Value {
    json!({
        "experiment": EXPERIMENT,
        "version": env!("CARGO_PKG_VERSION"),
        "debug_assertions": cfg!(debug_assertions),
        "machine": figures.machine,
        "scale": figures.scale,
        "threads": figures.threads,
        "random_reads_per_second": figures.random_reads,
        "missing": figures.missing.iter().map(Missing::json).collect::<Vec<_>>(),
        "workloads": figures.joins.iter().map(|join| json_of_join(figures, join)).collect::<Vec<_>>(),
    })
}

fn json_of_join(figures: &Figures, join: &Join) -> Value {
    let engine = |contender: &Contender| {
        json!({
            "name": contender.engine.name,
            "version": contender.engine.version,
            "failed": contender.runs.as_ref().err(),
            "median_seconds": seconds(contender),
            "million_tuples_per_second": seconds(contender).map(|seconds| speed(join, seconds)),
            "peak_memory_bytes": peak_memory(contender),
            "runs": contender.runs().iter().map(|run| json!({
                "seconds": run.seconds,
                "peak_memory_bytes": run.peak_memory,
                "peak_memory_includes_loading": run.peak_of_loading,
            })).collect::<Vec<_>>(),
        })
    };
    let bound = Bound::of(figures, join);
    let best = best_peer(join);
    json!({
        "name": join.workload.name,
        "build_rows": join.tables.build_rows,
        "probe_rows": join.tables.probe_rows,
        "tuple_bytes": join.tables.tuple,
        "sparse": join.tables.sparse,
        "zipf": join.tables.zipf,
        "match_rate": join.tables.match_rate,
        "materializes": join.workload.materializes,
        "query": join.workload.query(),
        "answer": join.overspill.runs().first().map(|run| &run.answer),
        "overspill": engine(&join.overspill),
        "peers": join.peers.iter().map(engine).collect::<Vec<_>>(),
        "best_peer": best.map(|(engine, _)| engine.name),
        "best_peer_seconds_to_overspill": best.map(|(_, ratio)| ratio),
        "peak_memory_to_datafusion": memory_ratio(join),
        "bound": {
            "random_access_seconds": bound.random_access,
            "scan_seconds": bound.scan,
            "seconds": bound.seconds(),
            "share_of_overspill_seconds": share_of_bound(figures, join),
        },
        "targets": targets(figures, join).iter().map(Target::json).collect::<Vec<_>>(),
    })
}

/// The speeds of all engines, by join, of the chosen joins of an experiment's JSON.
pub(super) fn figure(json: &Value, chosen: &[Workload]) -> Figure {
    let joins: Vec<&Value> =
        list(&json["workloads"]).filter(|join| chosen.iter().any(|workload| join["name"] == workload.name)).collect();
    let mut figure = Figure {
        name: EXPERIMENT,
        title: "SQL joins of tables in memory",
        paper: "longer is faster",
        machine: format!("{}, {} threads", text(&json["machine"]), json["threads"]),
        x: Axis::named("build x probe rows", joins.iter().map(|join| describe(join))),
        y: Axis::linear("million tuples a second"),
        notes: list(&json["missing"]).map(|missing| text(&missing["reason"]).to_owned()).collect(),
        ..Figure::default()
    };
    for engine in joins.first().into_iter().flat_map(|join| engines(join)) {
        let points = (0..).map(f64::from).zip(&joins).filter_map(|(x, join)| {
            let contender = engines(join).find(|contender| contender["name"] == engine["name"])?;
            Some((x, contender["million_tuples_per_second"].as_f64()?))
        });
        let title = format!("{} {}", text(&engine["name"]), text(&engine["version"]));
        figure.add(SeriesSource::Measured, title, points.collect());
    }
    let bounds = (0..).map(f64::from).zip(&joins).filter_map(|(x, join)| {
        let tuples = join["build_rows"].as_f64()? + join["probe_rows"].as_f64()?;
        Some((x, tuples / join["bound"]["seconds"].as_f64()? / 1e6))
    });
    figure.add(SeriesSource::Bound, "a random read of memory a row", bounds.collect());
    figure
}

/// A join's name and, on a line of their own, its rows and what is special about its keys.
fn describe(join: &Value) -> String {
    let rows = |name: &str| match join[name].as_u64().unwrap_or_default() {
        rows if rows >= 1_000_000 => format!("{} M", rows as f64 / 1e6),
        rows => format!("{} K", rows as f64 / 1e3),
    };
    let mut text = format!("{}\n{} x {}", text(&join["name"]), rows("build_rows"), rows("probe_rows"));
    if join["sparse"] == true {
        text += ", sparse keys";
    }
    if let Some(zipf) = join["zipf"].as_f64().filter(|zipf| *zipf > 0.0) {
        _ = write!(text, ", skew of Zipf {zipf}");
    }
    if let Some(rate) = join["match_rate"].as_f64().filter(|rate| *rate < 1.0) {
        _ = write!(text, ", {:.0} % match", rate * 100.0);
    }
    if join["materializes"] == true {
        text += ", into a table";
    }
    text
}

/// The engines of a join, Overspill first.
fn engines(join: &Value) -> impl Iterator<Item = &Value> {
    std::iter::once(&join["overspill"]).chain(list(&join["peers"]))
}
