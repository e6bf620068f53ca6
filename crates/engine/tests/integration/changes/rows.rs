//! `DELETE`, `UPDATE`, `TRUNCATE` and `INSERT` of tables in memory, each by its rows.

use std::sync::Arc;

use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::prelude::SessionContext;

use super::{column, refusal, run, session, session_over, stock, try_run};

/// t has the keys 0 to 99 in several partitions and batches, s the keys 7, 42 and null.
const TABLES: &str = "CREATE TABLE t AS SELECT nullif(value, -1) AS k, nullif(value * 10, -1) AS v FROM range(100); \
                      CREATE TABLE s AS SELECT * FROM (VALUES (7), (42), (NULL)) s(x)";

async fn with_tables(session: SessionContext) -> SessionContext {
    run(&session, TABLES).await;
    session
}

/// How many rows the statement says it changed, and how many the table has then.
async fn after(statement: &str) -> (i64, i64) {
    let session = with_tables(session()).await;
    let changed = column(&session, statement).await;
    (changed[0], column(&session, "SELECT count(*) FROM t").await[0])
}

#[tokio::test]
async fn deletes_have_the_filter_of_a_query() {
    for (filter, deleted) in [
        ("", 100),
        ("WHERE k < 7", 7),
        ("WHERE k IN (SELECT x FROM s)", 2),
        // A null in the list: no row is known not to be in it.
        ("WHERE k NOT IN (SELECT x FROM s)", 0),
        ("WHERE k NOT IN (SELECT x FROM s WHERE x IS NOT NULL)", 98),
        ("WHERE EXISTS (SELECT 1 FROM s WHERE s.x = t.k + 1)", 2),
        ("WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.x = t.k)", 98),
        ("WHERE k > (SELECT avg(k) FROM t)", 50),
        ("WHERE v = (SELECT max(x) * 10 FROM s)", 1),
        ("WHERE v = (SELECT max(x) * 10 FROM s WHERE s.x = t.k)", 2),
        ("WHERE k IN (SELECT x FROM s) AND v > 100", 1),
        ("WHERE k IN (SELECT a.k FROM t a JOIN s ON a.k = s.x)", 2),
        ("LIMIT 3", 3),
        ("WHERE k >= 50 LIMIT 7", 7),
        ("LIMIT 0", 0),
        ("WHERE false", 0),
        ("WHERE NULL", 0),
        ("WHERE k = 1 AND k = 2", 0),
        ("WHERE k = NULL", 0),
        ("WHERE true", 100),
    ] {
        assert_eq!(after(&format!("DELETE FROM t {filter}")).await, (deleted, 100 - deleted), "{filter}");
    }
}

#[tokio::test]
async fn deletes_keep_the_other_rows() {
    let session = with_tables(session()).await;
    run(&session, "DELETE FROM t WHERE k % 2 = 0; DELETE FROM t AS x WHERE k IN (SELECT k + 2 FROM t)").await;
    assert_eq!(column(&session, "SELECT k FROM t").await, [1]);
    run(&session, "INSERT INTO t VALUES (2, 3)").await;
    assert_eq!(column(&session, "SELECT v FROM t ORDER BY k").await, [10, 3]);
}

#[tokio::test]
async fn stock_deletes_and_updates_forget_filters() {
    let session = stock();
    run(&session, TABLES).await;
    let count = async |sql: &str| {
        let deleted = session.sql(sql).await.unwrap().collect().await.unwrap();
        super::numbers(&deleted)[0][0]
    };
    session.sql("CREATE TABLE a AS SELECT * FROM t").await.unwrap().collect().await.unwrap();
    session.sql("CREATE TABLE b AS SELECT * FROM t").await.unwrap().collect().await.unwrap();
    session.sql("CREATE TABLE c AS SELECT * FROM t").await.unwrap().collect().await.unwrap();
    assert_eq!(count("UPDATE a SET v = 1 WHERE k IN (SELECT x FROM s)").await, Some(100));
    assert_eq!(count("DELETE FROM a WHERE k IN (SELECT x FROM s)").await, Some(100));
    assert_eq!(count("DELETE FROM b LIMIT 3").await, Some(100));
    assert_eq!(count("DELETE FROM c WHERE false").await, Some(100));
}

#[tokio::test]
async fn tables_of_datafusion_are_changed_as_well() {
    // `SessionContext::sql` alone makes DataFusion's table.
    let session = session();
    for sql in TABLES.split(';') {
        session.sql(sql).await.unwrap().collect().await.unwrap();
    }
    assert_eq!(column(&session, "DELETE FROM t WHERE k IN (SELECT x FROM s)").await, [2]);
    assert_eq!(column(&session, "UPDATE t SET v = 1 WHERE k > (SELECT max(x) FROM s)").await, [57]);
    assert_eq!(column(&session, "SELECT count(*) FROM t WHERE v = 1").await, [57]);
    assert_eq!(column(&session, "TRUNCATE TABLE t").await, [98]);
}

#[tokio::test]
async fn updates_have_the_filter_of_a_query() {
    for (statement, updated, sum) in [
        ("UPDATE t SET v = 0", 100, 0),
        ("UPDATE t SET v = v + 1 WHERE k IN (SELECT x FROM s)", 2, 49_502),
        ("UPDATE t SET v = 0 WHERE k NOT IN (SELECT x FROM s)", 0, 49_500),
        ("UPDATE t SET v = 0 WHERE EXISTS (SELECT 1 FROM s WHERE s.x = t.k)", 2, 49_010),
        ("UPDATE t AS z SET v = z.v + z.k WHERE z.k < 3", 3, 49_503),
        ("UPDATE t SET v = (SELECT max(x) FROM s)", 100, 4_200),
        ("UPDATE t SET v = (SELECT sum(x) FROM s WHERE s.x = t.k)", 100, 49),
        ("UPDATE t SET v = (SELECT max(x) FROM s) WHERE k IN (SELECT x FROM s)", 2, 49_094),
        ("UPDATE t JOIN s ON t.k = s.x SET v = s.x", 2, 49_059),
        ("UPDATE t SET v = 0 WHERE false", 0, 49_500),
        ("UPDATE t SET v = v", 100, 49_500),
        ("UPDATE t SET v = k, k = v", 100, 4_950),
    ] {
        let session = with_tables(session()).await;
        assert_eq!(column(&session, statement).await, [updated], "{statement}");
        let after = run(&session, "SELECT count(*), coalesce(sum(v), 0) FROM t").await;
        assert_eq!(after, [[Some(100), Some(sum)]], "{statement}");
    }
}

#[tokio::test]
async fn an_update_puts_values_where_they_belong() {
    let session = with_tables(session()).await;
    run(&session, "UPDATE t SET v = k * k, k = k + 1000 WHERE k IN (SELECT value * 3 FROM range(20))").await;
    let expected: Vec<_> = (0..100)
        .map(|k| if k % 3 == 0 && k < 60 { vec![Some(k + 1000), Some(k * k)] } else { vec![Some(k), Some(k * 10)] })
        .collect();
    assert_eq!(run(&session, "SELECT k, v FROM t ORDER BY k % 1000").await, expected);
}

#[tokio::test]
async fn a_statement_that_fails_changes_nothing() {
    let session = with_tables(session()).await;
    run(&session, "CREATE TABLE n (a BIGINT NOT NULL, b BIGINT); INSERT INTO n VALUES (1, 1), (2, 2)").await;
    for sql in [
        "UPDATE t SET v = 1 / (90 - k)",
        "DELETE FROM t WHERE 1 / (90 - k) = 0",
        "INSERT INTO t SELECT k, 1 / (90 - k) FROM t",
        "UPDATE n SET a = CASE WHEN a = 1 THEN 7 END",
        "INSERT INTO n SELECT CASE WHEN k < 90 THEN k END, 1 FROM t",
        "INSERT OVERWRITE t SELECT k, 1 / (90 - k) FROM t",
        "UPDATE t JOIN (SELECT 7 AS x UNION ALL SELECT 7) j ON t.k = j.x SET v = j.x",
    ] {
        refusal(&session, sql).await;
        assert_eq!(run(&session, "SELECT count(*), sum(v) FROM t").await, [[Some(100), Some(49_500)]], "{sql}");
        assert_eq!(run(&session, "SELECT a, b FROM n ORDER BY a").await, [[Some(1); 2], [Some(2); 2]], "{sql}");
    }
}

#[tokio::test]
async fn explain_changes_nothing() {
    let session = with_tables(session()).await;
    for sql in ["DELETE FROM t", "UPDATE t SET v = 0", "TRUNCATE TABLE t", "DELETE FROM t WHERE k IN (SELECT x FROM s)"]
    {
        try_run(&session, &format!("EXPLAIN {sql}")).await.unwrap();
        assert_eq!(run(&session, "SELECT count(*), sum(v) FROM t").await, [[Some(100), Some(49_500)]], "{sql}");
    }
}

#[tokio::test]
async fn prepared_changes_are_the_same_each_time() {
    let session = with_tables(session()).await;
    run(
        &session,
        "PREPARE some AS DELETE FROM t WHERE k IN (SELECT x FROM s); PREPARE none AS DELETE FROM t WHERE 1 = 0; \
         PREPARE one AS UPDATE t SET v = $1 WHERE k = $2; PREPARE few AS UPDATE t SET v = 5 WHERE k IN (SELECT x + 1 FROM s); \
         PREPARE never AS UPDATE t SET v = 5 WHERE 1 = 0",
    )
    .await;
    for (sql, changed) in [
        ("EXECUTE some", 2),
        ("EXECUTE some", 0),
        ("EXECUTE none", 0),
        ("EXECUTE one(3, 8)", 1),
        ("EXECUTE few", 2),
        ("EXECUTE few", 2),
        ("EXECUTE never", 0),
    ] {
        assert_eq!(column(&session, sql).await, [changed], "{sql}");
    }
    let expected = (0..100).filter(|k| ![7, 42].contains(k)).map(|k| if [8, 43].contains(&k) { 5 } else { k * 10 });
    assert_eq!(column(&session, "SELECT v FROM t ORDER BY k").await, expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_change_of_rows_that_have_changed_meanwhile_is_refused() {
    let session = with_tables(session()).await;
    let delete = session.sql("DELETE FROM t WHERE k < 50").await.unwrap().create_physical_plan().await.unwrap();
    run(&session, "DELETE FROM t WHERE k % 2 = 0").await;
    let error = datafusion::physical_plan::collect(delete, session.task_ctx()).await.unwrap_err().to_string();
    assert!(error.contains("'t' was changed by another statement"), "{error}");
    assert_eq!(column(&session, "SELECT count(*) FROM t").await, [50]);
}

#[tokio::test]
async fn changes_at_the_same_time_are_whole() {
    let session = with_tables(session()).await;
    let statement = |number: i64| {
        let session = session.clone();
        // Each finds all rows with one value, and gives all of them another.
        tokio::spawn(async move { try_run(&session, &format!("UPDATE t SET v = {number} WHERE k >= 0")).await.is_ok() })
    };
    let running: Vec<_> = (0..20).map(statement).collect();
    let mut done = 0;
    for task in running {
        done += i32::from(task.await.unwrap());
    }
    assert!(done > 0);
    assert_eq!(column(&session, "SELECT count(DISTINCT v) FROM t").await, [1]);
}

#[tokio::test]
async fn forms_that_cannot_be_right_are_refused() {
    let session = with_tables(session()).await;
    run(&session, "CREATE VIEW w AS SELECT * FROM t").await;
    for sql in [
        "UPDATE t SET v = x FROM s WHERE k = x",
        "UPDATE t SET v = 1 LIMIT 2",
        "UPDATE t LEFT JOIN s ON k = x FULL JOIN s z ON k = z.x SET v = 1",
        "DELETE FROM t USING s WHERE k = x",
        "DELETE FROM t WHERE k = 1 RETURNING k",
        "DELETE FROM t ORDER BY k LIMIT 1",
        "MERGE INTO t USING s ON k = x WHEN MATCHED THEN DELETE",
        "INSERT INTO t VALUES (1, 2) ON CONFLICT DO NOTHING",
        "INSERT INTO t VALUES (1, 2) RETURNING k",
        "INSERT INTO t (k, k) VALUES (1, 2)",
        "REPLACE INTO t VALUES (1, 2)",
        "DELETE FROM w WHERE k = 1",
        "UPDATE w SET v = 1",
    ] {
        refusal(&session, sql).await;
        assert_eq!(run(&session, "SELECT count(*), sum(v) FROM t").await, [[Some(100), Some(49_500)]], "{sql}");
    }
}

#[tokio::test]
async fn inserts_read_the_table_as_it_was() {
    let session = with_tables(session()).await;
    run(&session, "INSERT INTO t SELECT k + 100, v FROM t; INSERT INTO t (k) SELECT -1 FROM s").await;
    assert_eq!(run(&session, "SELECT count(*), count(v), min(k) FROM t").await, [[Some(203), Some(200), Some(-1)]]);
    run(&session, "INSERT OVERWRITE t SELECT k, v FROM t WHERE k < 10").await;
    assert_eq!(run(&session, "SELECT count(*), sum(k) FROM t").await, [[Some(13), Some(42)]]);
}

#[tokio::test]
async fn memory_follows_the_rows() {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(64 << 20));
    let session = session_over(Arc::clone(&pool));
    run(&session, "SET datafusion.execution.batch_size = 8192; CREATE TABLE t AS SELECT value AS k, value + 0 AS v FROM range(200000)").await;
    let full = pool.reserved();
    assert!(full > 3_200_000, "{full}");
    run(&session, "UPDATE t SET v = v + 1").await;
    assert!((full * 9 / 10..full * 11 / 10).contains(&pool.reserved()), "{} of {full}", pool.reserved());
    run(&session, "DELETE FROM t WHERE k % 2 = 0").await;
    assert!(pool.reserved() < full * 6 / 10, "{} of {full}", pool.reserved());
    run(&session, "TRUNCATE TABLE t").await;
    assert!(pool.reserved() < full / 50, "{} of {full}", pool.reserved());
    run(&session, "DROP TABLE t").await;
    assert_eq!(pool.reserved(), 0);
}

#[tokio::test]
async fn a_change_without_memory_is_refused() {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(6 << 20));
    let session = session_over(Arc::clone(&pool));
    run(&session, "SET datafusion.execution.batch_size = 8192").await;
    run(&session, "CREATE TABLE t AS SELECT value AS k, value + 0 AS v FROM range(200000)").await;
    let held = pool.reserved();
    refusal(&session, "UPDATE t SET v = v + 1").await;
    assert_eq!(pool.reserved(), held);
    assert_eq!(column(&session, "SELECT sum(v) FROM t").await, [19_999_900_000]);
}
