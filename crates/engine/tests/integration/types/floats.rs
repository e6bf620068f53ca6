//! NaN and infinity: in groups, and in Parquet files, whose statistics leave NaN out.

use super::{Case, as_stock, check, mended, run, session};
use crate::harness::session::Engine;

const GROUPS: [&str; 1] = [
    "CREATE TABLE t AS SELECT g, CAST(x AS DOUBLE) AS x FROM (VALUES (1, 'NaN'), (1, '1'), (2, '2'), (2, 'NaN'), (3, '5'), (4, \
     'inf'), (5, '-inf'), (6, NULL)) AS v(g, x)",
];

#[tokio::test]
async fn extremes_of_groups_know_nan_and_infinity() {
    check(
        &GROUPS,
        &[
            mended("SELECT g, max(x), min(x) FROM t WHERE g < 3 GROUP BY g", "1 NaN 1.0, 2 NaN 2.0"),
            mended("SELECT g, max(x), min(x) FROM t WHERE g > 3 GROUP BY g", "4 inf inf, 5 -inf -inf, 6 NULL NULL"),
            mended(
                "SELECT g, max(CAST(x AS REAL)), min(arrow_cast(x, 'Float16')) FROM t WHERE g <> 6 GROUP BY g",
                "1 NaN 1, 2 NaN 2, 3 5.0 5, 4 inf inf, 5 -inf -inf",
            ),
            mended("SELECT g, max(x) AS m FROM t WHERE g < 4 GROUP BY g ORDER BY m DESC LIMIT 2", "1 NaN, 2 NaN"),
            mended("SELECT g FROM t WHERE g < 6 GROUP BY g HAVING max(x) > 4", "1, 2, 3, 4"),
            mended(
                "SELECT g, max(x) FILTER (WHERE x > -1), min(DISTINCT x) FROM t WHERE g < 4 GROUP BY g",
                "1 NaN 1.0, 2 NaN 2.0, 3 5.0 5.0",
            ),
            as_stock("SELECT max(x), min(x) FROM t", "NaN -inf"),
            as_stock("SELECT max(x) OVER (PARTITION BY g) FROM t WHERE g < 3", "NaN, NaN, NaN, NaN"),
            as_stock("SELECT max(x) OVER (ORDER BY g, x ROWS 1 PRECEDING) FROM t WHERE g < 3", "1.0, NaN, NaN, NaN"),
        ],
    )
    .await;
    let ours = session(Engine::Overspill, &GROUPS).await;
    let any = "SELECT g, x <= ANY (SELECT u.x FROM t u WHERE u.g = t.g) FROM t WHERE g < 4";
    assert_eq!(run(&ours.ctx, any).await.unwrap(), "1 true, 1 true, 2 true, 2 true, 3 true");
}

/// Runs cases over Parquet files, in which `p` is a table with NaN, `q` one whose only number is 5, and `s` one with NaN of
/// both signs.
async fn check_parquet(options: &[&str], cases: &[Case]) {
    let directory = tempfile::tempdir().unwrap();
    let rows = [
        ("p", "(1, 'NaN'), (2, '1'), (3, '2'), (4, 'NaN'), (5, '5'), (6, NULL)"),
        ("q", "(1, '5'), (2, 'NaN'), (3, '5')"),
        ("s", "(1, '-NaN'), (2, '1'), (3, 'NaN')"),
    ];
    let mut setup: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    for (name, rows) in rows {
        let file = directory.path().join(format!("{name}.parquet"));
        // DataFusion reads no sign of a NaN.
        let value = "CASE x WHEN '-NaN' THEN -CAST('NaN' AS DOUBLE) ELSE CAST(x AS DOUBLE) END";
        setup.push(format!(
            "COPY (SELECT i, {value} AS x FROM (VALUES {rows}) AS v(i, x)) TO '{}' STORED AS PARQUET",
            file.display()
        ));
        setup.push(format!("CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{}'", file.display()));
    }
    let setup: Vec<&str> = setup.iter().map(String::as_str).collect();
    check(&setup, cases).await;
}

const NO_STATISTICS: &str = "SET datafusion.execution.collect_statistics = false";
const STATISTICS: &str = "SET datafusion.execution.collect_statistics = true";
const FILTERED_WHILE_READ: &str = "SET datafusion.execution.parquet.pushdown_filters = true";

#[tokio::test]
async fn a_column_of_one_number_and_nan_is_read() {
    let cases = [
        mended("SELECT * FROM q", "1 5.0, 2 NaN, 3 5.0"),
        mended("SELECT x, count(*) FROM q GROUP BY x", "5.0 2, NaN 1"),
        mended("SELECT max(x), min(x) FROM p", "NaN 1.0"),
        mended("SELECT i FROM q WHERE x <> 5", "2"),
        mended("SELECT sum(i) FROM q GROUP BY x", "2, 4"),
        as_stock("SELECT count(x) FROM p", "5"),
    ];
    check_parquet(&[STATISTICS], &cases).await;
}

#[tokio::test]
async fn filters_find_nan_in_parquet_files() {
    let cases = [
        mended("SELECT i FROM p WHERE x > 7", "1, 4"),
        mended("SELECT i FROM p WHERE NOT x <= 7", "1, 4"),
        mended("SELECT i FROM p WHERE x = CAST('NaN' AS DOUBLE)", "1, 4"),
        mended("SELECT i FROM p WHERE x > 7 AND i > 1", "4"),
        mended("SELECT i FROM p WHERE x > 7 OR i > 9", "1, 4"),
        mended("SELECT i FROM q WHERE x <> 5", "2"),
        mended("SELECT i FROM s WHERE x < 0", "1"),
        as_stock("SELECT i FROM p WHERE x IS NULL", "6"),
        as_stock("SELECT i FROM p WHERE x BETWEEN 2 AND 9", "3, 5"),
        as_stock("SELECT i FROM p WHERE x BETWEEN 6 AND 9", ""),
        as_stock("SELECT i FROM p WHERE x IN (2, 7)", "3"),
    ];
    check_parquet(&[NO_STATISTICS], &cases).await;
    check_parquet(&[NO_STATISTICS, FILTERED_WHILE_READ], &cases).await;
    check_parquet(&[STATISTICS], &cases).await;
}
