//! Reports of the experiment: a table for people, JSON for programs, and a plot.

use std::fmt::Write;

use overspill_experiments::{Axis, Figure, SeriesSource};
use serde_json::{Value, json};

use super::{Contender, Figures, Query};
use crate::engines::{HOST, Missing, Target};
use crate::report::{list, median, size, slow_build, text};

/// The name of the experiment in its JSON.
pub(super) const EXPERIMENT: &str = "tpch";

/// The allowed time of a query, as a multiple of the time with DataFusion's joins.
const TOLERANCE: f64 = 1.05;

/// The median of a query's runs.
fn seconds(contender: &Contender, query: usize) -> Option<f64> {
    median(contender.seconds.get(query)?.as_ref().ok()?.clone())
}

/// The time of all queries; `None` if the engine did not finish one.
fn total(contender: &Contender) -> Option<f64> {
    (0..contender.seconds.len()).map(|query| seconds(contender, query)).sum()
}

/// A query's time as a multiple of another engine's, by the medians or by the fastest runs, whichever is less, as
/// disturbances only make runs longer.
fn slowdown(of: &Contender, to: &Contender, query: usize) -> Option<f64> {
    let fastest = |contender: &Contender| -> Option<f64> {
        contender.seconds.get(query)?.as_ref().ok()?.iter().copied().min_by(f64::total_cmp)
    };
    let by_median = seconds(of, query)? / seconds(to, query)?;
    Some(by_median.min(fastest(of)? / fastest(to)?))
}

pub(super) fn targets(figures: &Figures) -> Vec<Target> {
    let ours = total(figures.overspill());
    let host = figures.contenders.iter().find(|contender| contender.engine.name == HOST);
    let target = |other: &Contender| {
        let ratio = ours.zip(total(other)).map(|(ours, theirs)| ours / theirs);
        let title = other.engine.title();
        let sentence = match ratio {
            Some(ratio) => format!("{ratio:.2} x the seconds of {title}, less than 1 x"),
            None => format!("{title} did not finish all queries, less than 1 x its seconds are wanted"),
        };
        Target { name: "total", sentence, met: ratio.map(|ratio| ratio < 1.0) }
    };
    let mut targets: Vec<Target> = [Some(figures.stock()), host].into_iter().flatten().map(target).collect();
    let numbered = figures.queries.iter().enumerate();
    let slower: Vec<String> = numbered
        .filter_map(|(place, query)| Some((query.number, slowdown(figures.overspill(), figures.stock(), place)?)))
        .filter(|(_, slowdown)| *slowdown > TOLERANCE)
        .map(|(number, slowdown)| format!("query {number} {slowdown:.2} x"))
        .collect();
    targets.push(Target {
        name: "queries",
        sentence: format!(
            "{}, at most {TOLERANCE} x the seconds with {} by the median and by the fastest run",
            if slower.is_empty() { "none slower".to_owned() } else { slower.join(", ") },
            figures.stock().engine.name
        ),
        met: Some(slower.is_empty()),
    });
    targets
}

pub(super) fn table(figures: &Figures) -> String {
    let mut text = format!(
        "TPC-H, scale factor {}, {} threads, medians of {} runs, seconds\n{}\n",
        figures.scale, figures.threads, figures.runs, figures.machine
    );
    for note in figures.missing.iter().map(|missing| missing.reason.as_str()).chain(slow_build()) {
        _ = writeln!(text, "{note}");
    }
    let titles: Vec<String> = figures.contenders.iter().map(|contender| contender.engine.title()).collect();
    let width = titles.iter().map(|title| title.chars().count()).max().unwrap_or(0);
    let to_stock = format!("to {}", figures.stock().engine.name);
    _ = write!(text, "\n{:>5}", "query");
    titles.iter().for_each(|title| _ = write!(text, "  {title:>width$}"));
    _ = writeln!(text, "  {to_stock}");
    let mut line = |name: &str, seconds: &dyn Fn(&Contender) -> Option<f64>| {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        _ = write!(text, "{name:>5}");
        for contender in &figures.contenders {
            let seconds = or_none(seconds(contender).map(|seconds| format!("{seconds:.3}")));
            _ = write!(text, "  {seconds:>width$}");
        }
        let ratio = seconds(figures.overspill()).zip(seconds(figures.stock()));
        let ratio = or_none(ratio.map(|(ours, stock)| format!("{:.2} x", ours / stock)));
        _ = writeln!(text, "  {ratio:>0$}", to_stock.len());
    };
    for (place, query) in figures.queries.iter().enumerate() {
        line(&query.number.to_string(), &|contender| seconds(contender, place));
    }
    line("total", &total);
    _ = write!(text, "\nPeak memory:");
    for contender in &figures.contenders {
        let memory = contender.peak_memory.map_or_else(|| "-".to_owned(), size);
        _ = write!(text, " {} {memory};", contender.engine.name);
    }
    _ = writeln!(text);
    for contender in &figures.contenders {
        for (query, seconds) in figures.queries.iter().zip(&contender.seconds) {
            if let Err(reason) = seconds {
                _ = writeln!(text, "{} did not finish query {}: {reason}", contender.engine.name, query.number);
            }
        }
    }
    for target in targets(figures) {
        _ = writeln!(text, "{target}");
    }
    text
}

/// Every figure, times in seconds and sizes in bytes.
pub(super) fn json(figures: &Figures) -> Value {
    let engine = |contender: &Contender| {
        let queries: Vec<Value> = { figures.queries.iter().enumerate().zip(&contender.seconds) }
            .map(|((place, query), runs)| {
                json!({
                    "number": query.number,
                    "median_seconds": seconds(contender, place),
                    "runs": runs.as_ref().ok(),
                    "failed": runs.as_ref().err(),
                })
            })
            .collect();
        json!({
            "name": contender.engine.name,
            "version": contender.engine.version,
            "total_seconds": total(contender),
            "peak_memory_bytes": contender.peak_memory,
            "queries": queries,
        })
    };
    json!({
        "experiment": EXPERIMENT,
        "version": env!("CARGO_PKG_VERSION"),
        "debug_assertions": cfg!(debug_assertions),
        "machine": figures.machine,
        "scale": figures.scale,
        "threads": figures.threads,
        "missing": figures.missing.iter().map(Missing::json).collect::<Vec<_>>(),
        "engines": figures.contenders.iter().map(engine).collect::<Vec<_>>(),
        "targets": targets(figures).iter().map(Target::json).collect::<Vec<_>>(),
    })
}

/// The seconds of all engines, by query, of the chosen queries of an experiment's JSON.
pub(super) fn figure(json: &Value, chosen: &[Query]) -> Figure {
    let mut figure = Figure {
        name: EXPERIMENT,
        title: "TPC-H",
        paper: "shorter is faster",
        machine: format!("{}, {} threads, scale factor {}", text(&json["machine"]), json["threads"], json["scale"]),
        x: Axis::named("query", chosen.iter().map(|query| query.number.to_string())),
        y: Axis::linear("seconds"),
        ..Figure::default()
    };
    for engine in list(&json["engines"]) {
        let queries = list(&engine["queries"]).filter_map(|query| {
            let place = chosen.iter().position(|chosen| query["number"] == chosen.number)?;
            Some((place as f64, query["median_seconds"].as_f64()?))
        });
        let title = format!("{} {}", text(&engine["name"]), text(&engine["version"]));
        figure.add(SeriesSource::Measured, title, queries.collect());
    }
    figure
}
