//! `PRIMARY KEY` and `UNIQUE`: queries rely on them, so tables hold to them.

use std::sync::Arc;

use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};

use super::{column, refusal, run, session, session_over, stock};

#[tokio::test]
async fn keys_are_enforced() {
    let session = session();
    run(
        &session,
        "CREATE TABLE t (a BIGINT PRIMARY KEY, b BIGINT UNIQUE); INSERT INTO t VALUES (1, 10), (2, NULL), (3, NULL)",
    )
    .await;
    for (sql, reason) in [
        ("INSERT INTO t VALUES (4, 40), (2, 20)", "PRIMARY KEY (a) of table 't': more than one row has (2)"),
        ("INSERT INTO t VALUES (4, 40), (4, 20)", "PRIMARY KEY (a) of table 't': more than one row has (4)"),
        ("INSERT INTO t VALUES (NULL, 40)", "PRIMARY KEY (a) of table 't': a row has a null in it"),
        ("INSERT INTO t VALUES (4, 10)", "UNIQUE (b) of table 't': more than one row has (10)"),
        ("INSERT INTO t SELECT * FROM t", "more than one row has"),
        ("INSERT OVERWRITE t VALUES (7, 1), (7, 2)", "PRIMARY KEY (a) of table 't': more than one row has (7)"),
        ("UPDATE t SET a = 1", "PRIMARY KEY (a) of table 't': more than one row has (1)"),
        ("UPDATE t SET a = NULL WHERE a = 3", "PRIMARY KEY (a) of table 't': a row has a null in it"),
        ("UPDATE t SET b = a - 1", ""),
    ] {
        if reason.is_empty() {
            run(&session, sql).await;
            continue;
        }
        let error = refusal(&session, sql).await;
        assert!(error.contains(reason), "{sql}: {error}");
        assert_eq!(column(&session, "SELECT a FROM t ORDER BY a").await, [1, 2, 3], "{sql}");
    }
    // Values that are no more are free again.
    run(&session, "UPDATE t SET a = a + 1; INSERT INTO t VALUES (1, NULL); DELETE FROM t WHERE a = 3; INSERT INTO t VALUES (3, 1)")
        .await;
    assert_eq!(column(&session, "SELECT DISTINCT a FROM t ORDER BY a").await, [1, 2, 3, 4]);
    run(&session, "TRUNCATE TABLE t; INSERT INTO t VALUES (1, 2)").await;
    run(&session, "INSERT OVERWRITE t VALUES (1, 2), (5, 6); INSERT INTO t VALUES (2, 7)").await;
    refusal(&session, "INSERT INTO t VALUES (5, 8)").await;
}

#[tokio::test]
async fn distinct_of_a_key_gives_each_value_once() {
    let sql = "CREATE TABLE t (a BIGINT PRIMARY KEY); INSERT INTO t VALUES (1), (2)";
    let stock = stock();
    for sql in sql.split(';').chain(["INSERT INTO t VALUES (1)"]) {
        stock.sql(sql).await.unwrap().collect().await.unwrap();
    }
    let twice = stock.sql("SELECT DISTINCT a FROM t").await.unwrap().count().await.unwrap();
    assert_eq!(twice, 3, "DataFusion no longer relies on keys that it does not enforce");

    let session = session();
    run(&session, sql).await;
    refusal(&session, "INSERT INTO t VALUES (1)").await;
    assert_eq!(column(&session, "SELECT count(*) FROM (SELECT DISTINCT a FROM t)").await, [2]);
}

#[tokio::test]
async fn keys_that_nothing_enforces_are_not_relied_on() {
    // `SessionContext::sql` alone makes DataFusion's tables.
    let session = session();
    let folder = tempfile::tempdir().unwrap();
    let statements = [
        "CREATE TABLE t (a BIGINT PRIMARY KEY, b BIGINT)".to_owned(),
        "INSERT INTO t VALUES (1, 1), (1, 2), (2, 3)".to_owned(),
        format!("COPY t TO '{}/t.csv'", folder.path().display()),
        format!(
            "CREATE EXTERNAL TABLE f (a BIGINT PRIMARY KEY, b BIGINT) STORED AS CSV LOCATION '{}/'",
            folder.path().display()
        ),
    ];
    for sql in statements {
        session.sql(&sql).await.unwrap().collect().await.unwrap();
    }
    for table in ["t", "f"] {
        for (sql, expected) in [
            (format!("SELECT DISTINCT a FROM {table} ORDER BY a"), vec![1, 2]),
            (format!("SELECT count(*) FROM (SELECT DISTINCT a FROM {table})"), vec![2]),
            (format!("SELECT 7 WHERE 2 = (SELECT count(*) FROM (SELECT DISTINCT a FROM {table}))"), vec![7]),
            (format!("SELECT count(*) FROM (VALUES (1), (2)) v(x) LEFT JOIN {table} ON x = a"), vec![3]),
            (format!("SELECT b FROM {table} WHERE a = 1 ORDER BY b"), vec![1, 2]),
        ] {
            assert_eq!(column(&session, &sql).await, expected, "{sql}");
        }
    }
}

#[tokio::test]
async fn tables_made_of_queries_are_checked() {
    let session = session();
    for columns in ["a BIGINT PRIMARY KEY, b BIGINT", "a BIGINT, b BIGINT, UNIQUE (a)"] {
        let error =
            refusal(&session, &format!("CREATE TABLE t ({columns}) AS SELECT value % 90, value FROM range(100)")).await;
        assert!(error.contains("of table 't': more than one row has (0)"), "{error}");
    }
    run(
        &session,
        "CREATE TABLE t (a BIGINT, b BIGINT, PRIMARY KEY (a, b)) AS SELECT value % 90, value FROM range(100)",
    )
    .await;
    let error = refusal(&session, "INSERT INTO t VALUES (9, 99)").await;
    assert!(error.contains("more than one row has (9, 99)"), "{error}");
}

#[tokio::test]
async fn zeros_and_nans_are_values_of_a_key() {
    let session = session();
    run(&session, "CREATE TABLE t (a DOUBLE PRIMARY KEY); INSERT INTO t VALUES (0.0), ('NaN'::DOUBLE)").await;
    refusal(&session, "INSERT INTO t VALUES (-0.0)").await;
    refusal(&session, "INSERT INTO t VALUES ('NaN'::DOUBLE)").await;
}

#[tokio::test]
async fn constraints_that_nothing_enforces_are_refused() {
    let session = session();
    let folder = tempfile::tempdir().unwrap();
    let external = format!("(a BIGINT PRIMARY KEY) STORED AS CSV LOCATION '{}/'", folder.path().display());
    for sql in [
        &format!("CREATE EXTERNAL TABLE t {external}"),
        "CREATE TABLE t (a BIGINT CHECK (a > 0))",
        "CREATE TABLE t (a BIGINT, CHECK (a > 0))",
        "CREATE TABLE t (a BIGINT REFERENCES s(a))",
        "CREATE TABLE t (a BIGINT, FOREIGN KEY (a) REFERENCES s(a))",
        "CREATE TABLE t (a BIGINT[] PRIMARY KEY)",
    ] {
        refusal(&session, sql).await;
        assert!(!session.table_exist("t").unwrap(), "{sql}");
    }
}

#[tokio::test]
async fn values_of_keys_count_against_the_memory_limit() {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(64 << 20));
    let session = session_over(Arc::clone(&pool));
    run(&session, "CREATE TABLE plain AS SELECT value AS a FROM range(10000)").await;
    let plain = pool.reserved();
    run(&session, "CREATE TABLE t (a BIGINT PRIMARY KEY) AS SELECT value FROM range(10000)").await;
    assert!(pool.reserved() > plain * 2 + 300_000, "{} after {plain}", pool.reserved());
    run(&session, "DELETE FROM t WHERE a >= 10").await;
    assert!(pool.reserved() < plain + 20_000, "{} after {plain}", pool.reserved());
    run(&session, "DROP TABLE t; DROP TABLE plain").await;
    assert_eq!(pool.reserved(), 0);
}
