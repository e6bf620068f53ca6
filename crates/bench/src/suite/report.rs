//! Reports of the experiment: a table for people, JSON for programs, and a plot.

use std::fmt::{Display, Formatter, Write};

use overspill_experiments::{Axis, Figure, SeriesSource};
use serde_json::{Value, json};

use super::{Contender, Figures, Query, Suite};
use crate::engines::{HOST, Missing, Target};
use crate::report::{list, median, size, slow_build, text};

/// The allowed time of a query, as a multiple of the time with DataFusion's joins.
const TOLERANCE: f64 = 1.05;

/// How many of the queries in which Overspill does worst the table names.
const WORST: usize = 5;

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

/// Overspill's seconds as multiples of another engine's, over the queries that both have finished.
struct Ratios {
    /// The ratio of each query with its number, the largest first.
    queries: Vec<(usize, f64)>,
    total: f64,
    geometric_mean: f64,
}

impl Ratios {
    /// `None` if there is no such query.
    fn new(figures: &Figures, other: &Contender) -> Option<Self> {
        let numbered = figures.queries.iter().enumerate();
        let finished: Vec<(usize, f64, f64)> = numbered
            .filter_map(|(place, query)| {
                Some((query.number, seconds(figures.overspill(), place)?, seconds(other, place)?))
            })
            .collect();
        let mut queries: Vec<_> = finished.iter().map(|(number, ours, theirs)| (*number, ours / theirs)).collect();
        queries.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let logarithms: f64 = queries.iter().map(|(_, ratio)| ratio.ln()).sum();
        let sum = |seconds: fn(&(usize, f64, f64)) -> f64| finished.iter().map(seconds).sum::<f64>();
        (!queries.is_empty()).then(|| Self {
            total: sum(|(_, ours, _)| *ours) / sum(|(.., theirs)| *theirs),
            geometric_mean: (logarithms / queries.len() as f64).exp(),
            queries,
        })
    }

    fn worst(&self) -> &[(usize, f64)] {
        &self.queries[..self.queries.len().min(WORST)]
    }
}

/// A line of the table.
impl Display for Ratios {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let worst: Vec<String> =
            self.worst().iter().map(|(number, ratio)| format!("query {number} {ratio:.2} x")).collect();
        write!(
            f,
            "total {:.2} x, geometric mean {:.2} x, over {} queries; most: {}",
            self.total,
            self.geometric_mean,
            self.queries.len(),
            worst.join(", ")
        )
    }
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
        "{}, scale factor {}, {} threads, medians of {} runs, seconds\n{}\n",
        figures.suite.title, figures.scale, figures.threads, figures.runs, figures.machine
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
    _ = writeln!(text, "\nSeconds of Overspill to those of another engine:");
    for contender in &figures.contenders[1..] {
        let ratios = Ratios::new(figures, contender).map_or_else(|| "-".to_owned(), |ratios| ratios.to_string());
        _ = writeln!(text, "{}: {ratios}", contender.engine.title());
    }
    _ = write!(text, "\nPeak memory:");
    for contender in &figures.contenders {
        let memory = contender.peak_memory.map_or_else(|| "-".to_owned(), size);
        _ = write!(text, " {} {memory};", contender.engine.name);
    }
    _ = writeln!(text);
    for contender in &figures.contenders {
        contender.failures(&figures.queries).for_each(|(.., failure)| _ = writeln!(text, "{failure}"));
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
                    "failed": runs.as_ref().err().map(|failure| &failure.reason),
                    "differs": runs.as_ref().err().is_some_and(|failure| failure.differs),
                })
            })
            .collect();
        let ratios = Ratios::new(figures, contender).map(|ratios| {
            json!({
                "queries": ratios.queries.len(),
                "total": ratios.total,
                "geometric_mean": ratios.geometric_mean,
                "worst": ratios.worst().iter().map(|(number, ratio)| json!({ "number": number, "ratio": ratio })).collect::<Vec<_>>(),
            })
        });
        json!({
            "name": contender.engine.name,
            "version": contender.engine.version,
            "total_seconds": total(contender),
            "overspill_to_it": ratios,
            "peak_memory_bytes": contender.peak_memory,
            "queries": queries,
        })
    };
    json!({
        "experiment": figures.suite.name,
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
pub(super) fn figure(json: &Value, suite: &Suite, chosen: &[Query]) -> Figure {
    let mut figure = Figure {
        name: suite.name,
        title: suite.title,
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
