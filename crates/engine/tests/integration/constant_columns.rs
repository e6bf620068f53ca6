//! Columns that are one value in all rows of an input, and not in what an operator makes of it. A test that fails since stock
//! DataFusion is right says that the mend may go.

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use overspill::config::OverspillConfig;
use overspill::session::OverspillSessionExt;

fn session(ours: bool) -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(2).with_batch_size(100);
    let builder = SessionStateBuilder::new_with_default_features().with_config(config);
    let builder = if ours { builder.with_overspill(OverspillConfig::default()) } else { builder };
    SessionContext::new_with_state(builder.build())
}

const TABLES: [&str; 2] = [
    "CREATE TABLE a AS SELECT value AS k FROM range(4)",
    "CREATE TABLE b AS SELECT * FROM (VALUES (0, 7, 0), (2, 7, 1), (3, 8, 0)) AS t(k, w, s)",
];

/// The answer as text.
async fn answer(ours: bool, sql: &str) -> String {
    let session = session(ours);
    for table in TABLES {
        session.sql(table).await.unwrap().collect().await.unwrap();
    }
    let batches = session.sql(sql).await.unwrap().collect().await.unwrap();
    pretty_format_batches(&batches).unwrap().to_string()
}

/// Checks that stock DataFusion has another answer than Overspill, which has this one.
async fn mended(sql: &str, expected: &[&str]) {
    let ours = answer(true, sql).await;
    let words = |row: &str| row.split_whitespace().filter(|word| *word != "|").collect::<Vec<_>>().join(" ");
    let rows: Vec<_> = ours.lines().skip(3).filter(|line| line.starts_with('|')).map(words).collect();
    assert_eq!(rows, expected, "{sql}");
    assert_ne!(answer(false, sql).await, ours, "stock DataFusion has learned it: {sql}");
}

#[tokio::test]
async fn rows_of_outer_joins_are_sorted_by_columns_that_are_one_value_or_null() {
    for join in [
        "a LEFT JOIN b ON a.k = b.k AND b.w = 7",
        "b RIGHT JOIN a ON a.k = b.k AND b.w = 7",
        "a FULL JOIN (SELECT * FROM b WHERE w = 7) AS b ON a.k = b.k",
        "a LEFT JOIN b ON a.k BETWEEN b.k AND b.k AND b.w = 7",
    ] {
        let sql = format!("SELECT coalesce(b.w, 0) AS c, a.k FROM {join} ORDER BY b.w, a.k");
        mended(&sql, &["7 0", "7 2", "0 1", "0 3"]).await;
    }
}

#[tokio::test]
async fn groups_of_grouping_sets_are_sorted_by_columns_that_are_one_value_or_null() {
    let sql = "SELECT coalesce(w, 0) AS c, coalesce(s, 9) AS d, count(*) AS n FROM b WHERE w = 7 GROUP BY ROLLUP (w, s) \
               ORDER BY w NULLS FIRST, s";
    mended(sql, &["0 9 2", "7 0 1", "7 1 1", "7 9 2"]).await;
}
