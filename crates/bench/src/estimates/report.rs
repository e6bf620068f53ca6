//! Reports of the experiment: a table for people, and JSON for programs.

use std::fmt::Write;

use overspill_machine::topology::Topology;
use serde_json::{Value, json};

use super::{Estimator, duckdb};
use crate::engines::{Missing, Target};
use crate::report::machine;
use crate::suite::Suite;

/// From this number of joins on, all are one group.
const MANY_JOINS: usize = 5;
/// Up to this number of joins the median is to be no worse than DuckDB's.
const COMPARED_JOINS: usize = 4;
/// The errors that are wanted of filtered tables: of the median, and of 95 %.
const OF_TABLES: [f64; 2] = [1.5, 5.0];

/// Quantiles of errors.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Quantiles {
    count: usize,
    median: f64,
    of_90: f64,
    of_95: f64,
    most: f64,
}

impl Quantiles {
    /// Of the nodes with a number of joins, or with at least [`MANY_JOINS`]; `None` if there are none.
    fn of(estimator: &Estimator, joins: usize) -> Option<Self> {
        let of_group = estimator.guesses.iter().filter(|guess| guess.joins.min(MANY_JOINS) == joins);
        let mut errors: Vec<f64> = of_group.map(|guess| guess.error).collect();
        errors.sort_by(f64::total_cmp);
        let last = errors.len().checked_sub(1)?;
        let quantile = |share: f64| errors[(share * last as f64).round() as usize];
        let (median, of_90, of_95) = (quantile(0.5), quantile(0.9), quantile(0.95));
        Some(Self { count: errors.len(), median, of_90, of_95, most: errors[last] })
    }
}

/// Whether the errors are as small as they should be.
pub(super) fn targets(estimators: &[Estimator]) -> Vec<Target> {
    let ours = &estimators[0];
    let of_tables = Quantiles::of(ours, 0);
    let [median, of_95] = OF_TABLES;
    let mut targets = vec![Target {
        name: "filtered tables",
        sentence: format!(
            "{}, at most {median} x and {of_95} x",
            of_tables.map_or_else(
                || "none was estimated".to_owned(),
                |known| format!("{:.2} x at the median, {:.2} x at 95 %", known.median, known.of_95)
            )
        ),
        met: of_tables.map(|known| known.median <= median && known.of_95 <= of_95),
    }];
    let Some(peer) = estimators.iter().find(|estimator| estimator.engine.name == duckdb::NAME) else {
        return targets;
    };
    let medians = (1..=COMPARED_JOINS).map(|joins| (joins, Quantiles::of(ours, joins), Quantiles::of(peer, joins)));
    let worse: Vec<String> = medians
        .filter_map(|(joins, ours, theirs)| Some((joins, ours?.median, theirs?.median)))
        .filter(|(_, ours, theirs)| ours > theirs)
        .map(|(joins, ours, theirs)| format!("{joins}: {ours:.2} x, and {theirs:.2} x"))
        .collect();
    targets.push(Target {
        name: "joins",
        sentence: format!(
            "{} with 1 to {COMPARED_JOINS} joins, at the median no worse than {}",
            if worse.is_empty() { "none worse".to_owned() } else { worse.join(", ") },
            peer.engine.title()
        ),
        met: Some(worse.is_empty()),
    });
    targets
}

fn group_name(joins: usize) -> String {
    match joins {
        0 => "filtered tables".to_owned(),
        1 => "1 join".to_owned(),
        MANY_JOINS => format!("{MANY_JOINS} joins or more"),
        joins => format!("{joins} joins"),
    }
}

pub(super) fn table(suite: &Suite, scale: f64, estimators: &[Estimator], missing: &[Missing]) -> String {
    let machine = machine(&Topology::of_this_machine());
    let mut text = format!("{}, scale factor {scale}: true rows beside estimated ones\n{machine}\n", suite.title);
    missing.iter().for_each(|missing| _ = writeln!(text, "{}", missing.reason));
    for estimator in estimators {
        _ = writeln!(text, "\n{}", estimator.engine.title());
        let [number, median, of_90, of_95, most] = ["number", "median", "90 %", "95 %", "most"];
        _ = writeln!(text, "{:<16}  {number:>6}  {median:>8}  {of_90:>8}  {of_95:>8}  {most:>10}", "factor");
        for joins in 0..=MANY_JOINS {
            let Some(known) = Quantiles::of(estimator, joins) else { continue };
            let Quantiles { count, median, of_90, of_95, most } = known;
            let name = group_name(joins);
            _ = writeln!(text, "{name:<16}  {count:>6}  {median:>8.2}  {of_90:>8.2}  {of_95:>8.2}  {most:>10.2}");
        }
        estimator.failures.iter().for_each(|failure| _ = writeln!(text, "{failure}"));
    }
    _ = writeln!(text);
    targets(estimators).iter().for_each(|target| _ = writeln!(text, "{target}"));
    text
}

pub(super) fn json(suite: &Suite, scale: f64, estimators: &[Estimator], missing: &[Missing]) -> Value {
    let engines = estimators.iter().map(|estimator| {
        let groups = (0..=MANY_JOINS).filter_map(|joins| {
            let Quantiles { count, median, of_90, of_95, most } = Quantiles::of(estimator, joins)?;
            Some(json!({
                "joins": joins, "count": count, "median": median, "of_90": of_90, "of_95": of_95, "most": most,
            }))
        });
        json!({
            "name": estimator.engine.name,
            "version": estimator.engine.version,
            "groups": groups.collect::<Vec<_>>(),
            "failures": estimator.failures,
        })
    });
    json!({
        "experiment": "estimates",
        "suite": suite.name,
        "scale": scale,
        "machine": machine(&Topology::of_this_machine()),
        "many_joins": MANY_JOINS,
        "engines": engines.collect::<Vec<_>>(),
        "missing": missing.iter().map(Missing::json).collect::<Vec<_>>(),
        "targets": targets(estimators).iter().map(Target::json).collect::<Vec<_>>(),
    })
}
