//! The estimates in Overspill's EXPLAIN ANALYZE.

use datafusion::common::{Result, exec_datafusion_err};

use super::guess::{Below, Guess};
use crate::engines::Session;

/// The nodes that return the rows of their input, or drop some.
const FILTERS: [&str; 3] = ["AdaptiveFilterExec", "FilterExec", "IndexScanExec"];
const OTHERS: [&str; 6] = [
    "ProjectionExec",
    "RepartitionExec",
    "CoalescePartitionsExec",
    "CoalesceBatchesExec",
    "CooperativeExec",
    "AdmissionExec",
];

/// The estimates of a query's joins.
pub(super) fn guesses(session: &mut Session, sql: &str) -> Result<Vec<Guess>> {
    let (_, plan) = session.rows(&format!("EXPLAIN ANALYZE {sql}"))?;
    let nodes: Vec<(usize, &str)> = plan.iter().filter_map(|line| node(line)).collect();
    let mut guesses = vec![];
    let mut rest = nodes.as_slice();
    while !rest.is_empty() {
        add(&mut rest, &mut guesses)?;
    }
    Ok(guesses)
}

/// The depth and the text of a line of the plan; `None` for other lines.
fn node(line: &str) -> Option<(usize, &str)> {
    // The first line has the name of the plan before it.
    let line = line.strip_prefix("Plan with Metrics,").map_or(line, |line| line.trim_start_matches('"'));
    let text = line.trim_start();
    let name = text.split([':', ',']).next()?;
    name.ends_with("Exec").then_some((line.len() - text.len(), text))
}

/// Adds the joins of the first node and below it, and takes these nodes away.
fn add(nodes: &mut &[(usize, &str)], guesses: &mut Vec<Guess>) -> Result<Below> {
    let Some(((depth, text), rest)) = nodes.split_first() else { return Ok(Below::TABLE) };
    *nodes = rest;
    let mut inputs = vec![];
    while nodes.first().is_some_and(|(below, _)| below > depth) {
        inputs.push(add(nodes, guesses)?);
    }
    let name = text.split([':', ',']).next().unwrap_or_default();
    let below = inputs.iter().copied().reduce(Below::both);
    let other = Below { joins: None, is_filtered: false };
    Ok(match (name, inputs.as_slice()) {
        ("HybridJoinExec", [build, probe]) => {
            let Some(joins) = build.both(*probe).joins.map(|below| below + 1) else { return Ok(other) };
            // The probe side of an empty build side is not read.
            let is_probed = !text.contains("build_input_rows=0,");
            for (side, of, is_read) in [(build, "build~", true), (probe, "probe~", is_probed)] {
                if side.is_filtered_table() && is_read {
                    guesses.extend(factor(text, of)?.map(|factor| Guess::of_factor(0, factor)));
                }
            }
            guesses.extend(factor(text, "rows~")?.map(|factor| Guess::of_factor(joins, factor)));
            Below { joins: Some(joins), is_filtered: true }
        }
        ("DataSourceExec", []) => Below { is_filtered: text.contains("predicate="), ..Below::TABLE },
        (name, [input]) if FILTERS.contains(&name) => Below { is_filtered: true, ..*input },
        (name, [input]) if OTHERS.contains(&name) && !text.contains("fetch=") => *input,
        _ => below.map_or(other, |_| other),
    })
}

/// How many times what was estimated the truth is; `None` if nothing was estimated.
fn factor(text: &str, of: &str) -> Result<Option<f64>> {
    let Some((_, estimate)) = text.split_once(of) else { return Ok(None) };
    let wrong = || exec_datafusion_err!("EXPLAIN ANALYZE shows no factor after {of} in: {text}");
    let factor = estimate.split_once('(').and_then(|(_, rest)| rest.split_once(')')).ok_or_else(wrong)?.0;
    let number = factor.trim_start_matches(['x', '/']);
    let (number, unit) = number.split_once(' ').unwrap_or((number, ""));
    let unit = ["", "K", "M", "B", "T"].iter().position(|known| *known == unit).ok_or_else(wrong)?;
    let number = number.parse::<f64>().map_err(|_| wrong())? * 1000f64.powi(unit as i32);
    Ok(Some(if factor.starts_with('/') { 1.0 / number } else { number }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_are_counted_with_those_below() {
        let plan = [
            "Plan with Metrics,\"AdmissionExec, metrics=[]",
            "  HybridJoinExec: mode=CollectLeft, build~1.00 K (/2.5), probe~6.00 M (x1), rows~10 (x1.20 K), metrics=[]",
            "    FilterExec: a = 1, metrics=[]",
            "      DataSourceExec: file_groups={}, metrics=[]",
            "    HybridJoinExec: build~3 (x1), probe~4 (x4.0), rows~5 (x1), metrics=[build_input_rows=3, x=1]",
            "      DataSourceExec: metrics=[]",
            "      DataSourceExec: predicate=b < 3, metrics=[]\"",
        ];
        let nodes: Vec<_> = plan.iter().filter_map(|line| node(line)).collect();
        let mut guesses = vec![];
        let below = add(&mut nodes.as_slice(), &mut guesses).unwrap();
        assert_eq!((nodes.len(), below.joins), (7, Some(2)));
        let expected =
            [(0, 4.0), (1, 1.0), (0, 2.5), (2, 1200.0)].map(|(joins, factor)| Guess::of_factor(joins, factor));
        assert_eq!(guesses, expected);
    }

    #[test]
    fn nothing_is_said_above_groups() {
        let plan = [
            "HybridJoinExec: build~3 (x1), probe~4 (x4.0), rows~5 (x1)",
            "  HybridAggregateExec: mode=Single",
            "    DataSourceExec: predicate=b < 3",
            "  DataSourceExec: predicate=b < 3",
        ];
        let nodes: Vec<_> = plan.iter().filter_map(|line| node(line)).collect();
        let mut guesses = vec![];
        add(&mut nodes.as_slice(), &mut guesses).unwrap();
        assert_eq!(guesses, []);
    }
}
