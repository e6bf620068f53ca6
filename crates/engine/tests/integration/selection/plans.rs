//! Which plans are fused, and that whatever is not stays DataFusion's.

use overspill::{Choice, Selection};

use crate::harness::run::Run;
use crate::harness::session::{Engine, Memory, Session, Settings};

/// Runs a query over a table of numbers, each way, and returns how many of its filters were fused with their aggregates.
async fn fused(condition: &str, aggregates: &str, choice: Choice<Selection>) -> usize {
    let sql = format!("SELECT {aggregates} FROM t WHERE {condition}");
    let mut runs = vec![];
    for engine in [Engine::Stock, Engine::Overspill] {
        let session = Session::open(engine, &Settings::default(), Memory::Ample).unwrap();
        if engine == Engine::Overspill {
            session.ctx.sql(&format!("SET overspill.selection = {choice}")).await.unwrap();
        }
        let table = "CREATE TABLE t AS SELECT value AS a, value % 7 AS b, arrow_cast(value, 'Int32') AS c, \
                     CAST(value AS DOUBLE) AS f, CAST(value AS VARCHAR) AS s FROM generate_series(1, 5000)";
        session.ctx.sql(table).await.unwrap().collect().await.unwrap();
        runs.push(Run::of(&session.ctx, session.ctx.sql(&sql).await).await);
    }
    let expected = runs[0].answer.as_ref().unwrap();
    let answer = runs[1].answer.as_ref().unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(answer.difference(expected), None, "{sql}");
    runs[1].report.selection.nodes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comparisons_with_constants_are_fused_and_nothing_else() {
    let auto = Choice::AUTO;
    for (condition, aggregates) in [
        ("a < 100", "count(*), sum(a), min(b), max(c), sum(c)"),
        ("a BETWEEN 5 AND 4000 AND b = 3 AND 4 > c", "sum(a * b)"),
        ("a > 9223372036854775806", "sum(a), count(a)"),
        ("a >= 5 AND a < 5", "sum(a), min(a), count(*)"),
    ] {
        assert_eq!(fused(condition, aggregates, auto).await, 1, "{condition}: {aggregates}");
        assert_eq!(fused(condition, aggregates, Choice(Some(Selection::Off))).await, 0, "{condition}: {aggregates}");
    }
    for (condition, aggregates) in [
        ("a < 100 OR b = 2", "sum(a)"),
        ("a <> 100", "sum(a)"),
        ("a < b", "sum(a)"),
        ("f < 100", "sum(a)"),
        ("a < 100", "sum(f)"),
        ("a < 100", "sum(DISTINCT b)"),
        ("a < 100", "avg(a)"),
        ("a < 100", "sum(a) FILTER (WHERE b > 2)"),
        ("a < 100", "sum(a + b)"),
        ("a < 100", "sum(c * c)"),
        ("a < 100 AND s < '5'", "sum(a)"),
        ("a < 100", "b, sum(a)"),
    ] {
        let grouped = if aggregates.starts_with("b,") { " GROUP BY b" } else { "" };
        assert_eq!(fused(&format!("{condition}{grouped}"), aggregates, auto).await, 0, "{condition}: {aggregates}");
    }
}
