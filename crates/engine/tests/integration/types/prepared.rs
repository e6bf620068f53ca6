//! Queries that are optimized before they are run by another statement: of PREPARE, CREATE TABLE AS, INSERT and UNION.

use tempfile::tempdir;

use super::{as_stock, check, mended, run, session};
use crate::harness::session::Engine;

#[tokio::test]
async fn prepared_queries_are_those_that_were_written() {
    let setup = [
        "CREATE TABLE t AS SELECT * FROM (VALUES (1, 9223372036854775807), (2, 1), (NULL, 5)) v(i, n)",
        "CREATE TABLE s AS SELECT * FROM (VALUES (1), (NULL)) v(x)",
        "CREATE TABLE p AS SELECT * FROM (VALUES (CAST(1.40 AS DECIMAL(10, 2))), (CAST(1.00 AS DECIMAL(10, 2)))) v(price)",
        "PREPARE is_in AS SELECT i, i IN (SELECT x FROM s) FROM t",
        "PREPARE where_in AS SELECT i FROM t WHERE i IN (SELECT x FROM s)",
        "PREPARE is_not_in AS SELECT i, i NOT IN (SELECT x FROM s WHERE x < $1) FROM t",
        "PREPARE where_not_in AS SELECT i FROM t WHERE i NOT IN (SELECT x FROM s)",
        "PREPARE is_all AS SELECT i FROM t WHERE i = ALL (SELECT x FROM s WHERE x = 1)",
        "PREPARE lossy AS SELECT price FROM p WHERE CAST(price AS INT) = 1",
        "PREPARE running AS SELECT sum(i) OVER (ORDER BY i) FROM t WHERE n < $1",
        "PREPARE has AS SELECT i, EXISTS (SELECT 1 FROM s WHERE x = i) FROM t",
    ];
    check(
        &setup,
        &[
            mended("EXECUTE is_in", "1 true, 2 NULL, NULL NULL"),
            as_stock("EXECUTE where_in", "1"),
            mended("EXECUTE is_not_in(5)", "1 false, 2 true, NULL NULL"),
            mended("EXECUTE is_not_in(0)", "1 true, 2 true, NULL true"),
            as_stock("EXECUTE where_not_in", ""),
            as_stock("EXECUTE is_all", "1"),
            mended("EXECUTE lossy", "1.00, 1.40"),
            as_stock("EXECUTE running(9)", "2, 2"),
            mended("EXECUTE has", "1 true, 2 false, NULL false"),
        ],
    )
    .await;
}

#[tokio::test]
async fn prepared_sums_do_not_wrap() {
    let ours =
        session(Engine::Overspill, &["CREATE TABLE t AS SELECT * FROM (VALUES (9223372036854775807), (1)) v(n)"]).await;
    for (name, query) in [
        ("plain", "SELECT sum(n) FROM t"),
        ("windowed", "SELECT sum(n) OVER (ORDER BY n DESC) FROM t"),
        ("added", "SELECT n + 1 FROM t"),
    ] {
        run(&ours.ctx, &format!("PREPARE {name} AS {query}")).await.unwrap();
        let error = run(&ours.ctx, &format!("EXECUTE {name}")).await.expect_err(query).to_string();
        assert!(error.contains("beyond the range"), "{query}: {error}");
    }
}

#[tokio::test]
async fn a_prepared_delete_removes_what_its_condition_finds() {
    let setup = [
        "CREATE TABLE t AS SELECT * FROM (VALUES (1), (2), (NULL)) v(i)",
        "CREATE TABLE s AS SELECT * FROM (VALUES (1), (NULL)) v(x)",
        "PREPARE some AS DELETE FROM t WHERE i IN (SELECT x FROM s)",
        "PREPARE none AS DELETE FROM t WHERE i NOT IN (SELECT x FROM s)",
    ];
    let ours = session(Engine::Overspill, &setup).await;
    run(&ours.ctx, "EXECUTE none").await.unwrap();
    assert_eq!(run(&ours.ctx, "SELECT i FROM t").await.unwrap(), "1, 2, NULL");
    run(&ours.ctx, "EXECUTE some").await.unwrap();
    assert_eq!(run(&ours.ctx, "SELECT i FROM t").await.unwrap(), "2, NULL");
}

/// Scans of Parquet files take filters, which a plan that is analyzed again has there.
#[tokio::test]
async fn a_table_may_be_made_of_filtered_files() {
    let folder = tempdir().unwrap();
    let files = folder.path().join("t").display().to_string();
    let ours = session(Engine::Overspill, &[]).await;
    for statement in [
        format!("COPY (SELECT value AS k, value % 3 AS v FROM range(100)) TO '{files}/a.parquet' STORED AS PARQUET"),
        format!("CREATE EXTERNAL TABLE f STORED AS PARQUET LOCATION '{files}/'"),
        "CREATE TABLE some AS SELECT v FROM f WHERE k < 10 AND v + 1 = 2".to_owned(),
        "CREATE TABLE members AS SELECT k FROM f WHERE k IN (SELECT v FROM f WHERE v > 0)".to_owned(),
        "CREATE VIEW low AS SELECT k FROM f WHERE k < 5".to_owned(),
    ] {
        run(&ours.ctx, &statement).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
    assert_eq!(run(&ours.ctx, "SELECT count(*), min(v), max(v) FROM some").await.unwrap(), "3 1 1");
    assert_eq!(run(&ours.ctx, "SELECT k FROM members").await.unwrap(), "1, 2");
    assert_eq!(run(&ours.ctx, "SELECT sum(k) FROM low WHERE k > 1").await.unwrap(), "9");
}

#[tokio::test]
async fn what_is_inserted_gets_the_types_of_the_table() {
    let setup = [
        "CREATE TABLE a AS SELECT * FROM (VALUES (1), (2)) v(k)",
        "CREATE TABLE b AS SELECT CAST(k AS SMALLINT) AS k FROM (VALUES (2), (3)) v(k)",
        "CREATE TABLE merged (k INT)",
        "INSERT INTO merged SELECT k FROM a FULL JOIN b USING (k)",
        "CREATE TABLE mixed (d DECIMAL(10, 1))",
        "INSERT INTO mixed SELECT CAST(0.5 AS DOUBLE) UNION ALL SELECT CAST(1.5 AS DECIMAL(5, 1)) UNION ALL SELECT 2",
        "CREATE TABLE required (n BIGINT NOT NULL)",
        "INSERT INTO required VALUES (1), (2)",
    ];
    check(
        &setup,
        &[
            mended("SELECT k, arrow_typeof(k) FROM merged", "1 Int32, 2 Int32, 3 Int32"),
            as_stock(
                "SELECT d, arrow_typeof(d) FROM mixed",
                "0.5 Decimal128(10, 1), 1.5 Decimal128(10, 1), 2.0 Decimal128(10, 1)",
            ),
            // Sums of columns that are not null, beside values that may be.
            as_stock("SELECT n + 1 FROM required UNION ALL SELECT n * 2 FROM required", "2, 2, 3, 4"),
            as_stock("SELECT n + 1 FROM required UNION SELECT k FROM a", "1, 2, 3"),
            as_stock("SELECT n - 1 FROM required UNION ALL SELECT NULL", "0, 1, NULL"),
        ],
    )
    .await;
}

#[tokio::test]
async fn windows_may_read_no_column() {
    let setup = ["CREATE TABLE t AS SELECT * FROM (VALUES (1), (2), (3)) v(k)"];
    check(
        &setup,
        &[
            as_stock("SELECT row_number() OVER () FROM t", "1, 2, 3"),
            as_stock("SELECT count(*) OVER (ROWS 1 PRECEDING) FROM t", "1, 2, 2"),
            as_stock("SELECT count(*) OVER (), rank() OVER () FROM t", "3 1, 3 1, 3 1"),
        ],
    )
    .await;
}
