//! The estimates in DuckDB's EXPLAIN ANALYZE.

use datafusion::common::{Result, exec_datafusion_err};
use serde_json::Value;

use super::guess::{Below, Guess};
use crate::engines::Session;
use crate::report::{list, text};

pub(super) const NAME: &str = "DuckDB";

/// Lets joins return all rows that were estimated.
pub(super) fn prepare(session: &mut Session) -> Result<()> {
    session.rows("SET disabled_optimizers = 'join_filter_pushdown'").map(|_| ())
}

/// The estimates of a query's joins.
pub(super) fn guesses(session: &mut Session, sql: &str) -> Result<Vec<Guess>> {
    let (_, lines) = session.rows(&format!("EXPLAIN (ANALYZE, FORMAT JSON) {sql}"))?;
    guesses_of(&lines.join("\n"))
}

/// The estimates of a plan: a row of CSV with JSON in it.
fn guesses_of(row: &str) -> Result<Vec<Guess>> {
    let wrong = |what: &str| exec_datafusion_err!("DuckDB's EXPLAIN ANALYZE has {what}");
    let json = row.find('{').zip(row.rfind('}')).map(|(start, end)| row[start..=end].replace("\"\"", "\""));
    let json = json.ok_or_else(|| wrong("no JSON"))?;
    let plan: Value =
        serde_json::from_str(&json).map_err(|error| wrong(&format!("JSON that cannot be read: {error}")))?;
    let mut guesses = vec![];
    list(&plan["operator"]).for_each(|node| {
        add(node, &mut guesses);
    });
    Ok(guesses)
}

/// Adds the joins of a node and below it.
fn add(node: &Value, guesses: &mut Vec<Guess>) -> Below {
    let inputs: Vec<Below> = list(&node["children"]).map(|input| add(input, guesses)).collect();
    let (kind, info) = (text(&node["type"]), &node["extra_info"]);
    let guess = |joins| {
        let estimated = text(&info["Estimated Cardinality"]).parse::<f64>().ok()?;
        Some(Guess::new(joins, estimated, node["intermediate_rows"].as_f64()?))
    };
    match (kind, inputs.as_slice()) {
        ("TABLE_SCAN", []) => {
            let below = Below { is_filtered: !info["Filters"].is_null(), ..Below::TABLE };
            guesses.extend(guess(0).filter(|_| below.is_filtered));
            below
        }
        ("FILTER", [input]) => {
            if input.joins == Some(0) {
                // The filter that the scan has taken is a part of it.
                if input.is_filtered {
                    guesses.pop();
                }
                guesses.extend(guess(0));
            }
            Below { is_filtered: true, ..*input }
        }
        ("PROJECTION", [input]) => *input,
        ("HASH_JOIN", [probe, build]) => {
            let joins = probe.both(*build).joins.map(|below| below + 1);
            guesses.extend(joins.and_then(guess));
            Below { joins, is_filtered: true }
        }
        _ => Below { joins: None, is_filtered: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_and_filtered_tables_are_found() {
        let table = |filters: &str, estimated: usize, rows: usize| {
            format!(
                r#"{{"type": "TABLE_SCAN", "extra_info": {{{filters}"Estimated Cardinality": "{estimated}"}}, "intermediate_rows": {rows}}}"#
            )
        };
        let plan = format!(
            r#"{{"operator": [{{"type": "HASH_GROUP_BY", "children": [{{"type": "HASH_JOIN", "intermediate_rows": 0,
                "extra_info": {{"Estimated Cardinality": "30"}}, "children": [{}, {{"type": "FILTER", "intermediate_rows": 5,
                "extra_info": {{"Estimated Cardinality": "10"}}, "children": [{}]}}]}}]}}]}}"#,
            table("", 7, 70),
            table(r#""Filters": "a = 1", "#, 10, 40),
        );
        let row = format!("analyzed_plan,\"{}\"", plan.replace('"', "\"\""));
        assert_eq!(guesses_of(&row).unwrap(), [Guess::of_factor(0, 2.0), Guess::of_factor(1, 30.0)]);
    }
}
