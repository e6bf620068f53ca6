//! What the figures of the experiment say: a table for people, JSON for machines, a plot for both.

use std::fmt::Write;

use overspill_experiments::{Axis, Figure, SeriesSource};
use serde_json::{Value, json};

use super::{Contender, Figures};
use crate::engines::HOST;
use crate::report::{median, size, slow_build};

/// A query may take so many times as long as with DataFusion's joins.
const TOLERANCE: f64 = 1.05;

/// Something that Overspill is to reach.
pub(super) struct Target {
    name: &'static str,
    sentence: String,
    pub(super) met: bool,
}

/// The median of a query's runs.
fn seconds(contender: &Contender, query: usize) -> Option<f64> {
    median(contender.seconds.get(query)?.as_ref().ok()?.clone())
}

/// Of all queries; `None` if there is one that it did not finish.
fn total(contender: &Contender) -> Option<f64> {
    (0..contender.seconds.len()).map(|query| seconds(contender, query)).sum()
}

/// How many times the seconds of another a query takes, by the medians and by the fastest runs, whichever is less: what
/// disturbs a run makes it longer.
fn slowdown(of: &Contender, to: &Contender, query: usize) -> Option<f64> {
    let fastest = |contender: &Contender| -> Option<f64> {
        contender.seconds.get(query)?.as_ref().ok()?.iter().copied().min_by(f64::total_cmp)
    };
    let by_median = seconds(of, query)? / seconds(to, query)?;
    Some(by_median.min(fastest(of)? / fastest(to)?))
}

/// What Overspill is held to.
pub(super) fn targets(figures: &Figures) -> Vec<Target> {
    let ours = total(&figures.overspill).unwrap_or(f64::INFINITY);
    let host = figures.peers.iter().find(|peer| peer.engine.name == HOST);
    let mut targets: Vec<Target> = [Some(&figures.stock), host]
        .into_iter()
        .flatten()
        .filter_map(|other| Some((other, total(other)?)))
        .map(|(other, seconds)| Target {
            name: "total",
            sentence: format!("{:.2} x the seconds of {}, less than 1 x", ours / seconds, other.engine.title()),
            met: ours < seconds,
        })
        .collect();
    let numbered = figures.queries.iter().enumerate();
    let slower: Vec<String> = numbered
        .filter_map(|(place, query)| Some((query.number, slowdown(&figures.overspill, &figures.stock, place)?)))
        .filter(|(_, slowdown)| *slowdown > TOLERANCE)
        .map(|(number, slowdown)| format!("query {number} {slowdown:.2} x"))
        .collect();
    targets.push(Target {
        name: "queries",
        sentence: format!(
            "{}, at most {TOLERANCE} x the seconds with {} by the median and by the fastest run",
            if slower.is_empty() { "none slower".to_owned() } else { slower.join(", ") },
            figures.stock.engine.name
        ),
        met: slower.is_empty(),
    });
    targets
}

/// The table.
pub(super) fn table(figures: &Figures) -> String {
    let mut text = format!(
        "TPC-H, scale factor {}, {} threads, medians of {} runs, seconds\n{}\n",
        figures.scale, figures.threads, figures.runs, figures.machine
    );
    for note in figures.missing.iter().map(|missing| missing.reason.as_str()).chain(slow_build()) {
        _ = writeln!(text, "{note}");
    }
    _ = write!(text, "\n{:>5}", "query");
    for contender in figures.contenders() {
        _ = write!(text, "  {:>18}", contender.engine.title());
    }
    _ = writeln!(text, "  {:>24}", format!("to {}", figures.stock.engine.name));
    let ratio = |ours: Option<f64>, stock: Option<f64>| match (ours, stock) {
        (Some(ours), Some(stock)) => format!("{:.2} x", ours / stock),
        _ => "-".to_owned(),
    };
    let mut line = |name: &str, seconds: &dyn Fn(&Contender) -> Option<f64>| {
        _ = write!(text, "{name:>5}");
        for contender in figures.contenders() {
            let seconds = seconds(contender).map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.3}"));
            _ = write!(text, "  {seconds:>18}");
        }
        _ = writeln!(text, "  {:>24}", ratio(seconds(&figures.overspill), seconds(&figures.stock)));
    };
    for (place, query) in figures.queries.iter().enumerate() {
        line(&query.number.to_string(), &|contender| seconds(contender, place));
    }
    line("total", &total);
    _ = write!(text, "\nPeak memory:");
    for contender in figures.contenders() {
        let memory = contender.peak_memory.map_or_else(|| "-".to_owned(), size);
        _ = write!(text, " {} {memory};", contender.engine.name);
    }
    _ = writeln!(text);
    for contender in figures.contenders() {
        for (query, seconds) in figures.queries.iter().zip(&contender.seconds) {
            if let Err(reason) = seconds {
                _ = writeln!(text, "{} did not finish query {}: {reason}", contender.engine.name, query.number);
            }
        }
    }
    for target in targets(figures) {
        let verdict = if target.met { "met" } else { "MISSED" };
        _ = writeln!(text, "{verdict:<7} {}: {}.", target.name, target.sentence);
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
        "experiment": "tpch",
        "version": env!("CARGO_PKG_VERSION"),
        "debug_assertions": cfg!(debug_assertions),
        "machine": figures.machine,
        "scale": figures.scale,
        "threads": figures.threads,
        "missing": figures.missing.iter().map(|missing| json!({
            "name": missing.name,
            "reason": missing.reason,
        })).collect::<Vec<_>>(),
        "engines": figures.contenders().map(engine).collect::<Vec<_>>(),
        "targets": targets(figures).iter().map(|target| json!({
            "name": target.name,
            "sentence": target.sentence,
            "met": target.met,
        })).collect::<Vec<_>>(),
    })
}

/// The seconds of all engines, by query.
pub(super) fn figure(figures: &Figures) -> Figure {
    let mut figure = Figure {
        name: "tpch",
        title: "TPC-H",
        paper: "beside other engines",
        machine: figures.machine.clone(),
        emulated: false,
        x: Axis::linear("query"),
        y: Axis::linear("seconds"),
        series: vec![],
        notes: figures.missing.iter().map(|missing| missing.reason.clone()).collect(),
    };
    for contender in figures.contenders() {
        let points = figures.queries.iter().enumerate();
        let points = points.filter_map(|(place, query)| Some((query.number as f64, seconds(contender, place)?)));
        figure.add(SeriesSource::Measured, contender.engine.title(), points.collect());
    }
    figure
}
