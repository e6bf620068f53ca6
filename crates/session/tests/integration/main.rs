//! Sessions as a face uses them.

use std::time::{Duration, Instant};

use arrow::util::pretty::pretty_format_batches;
use futures::TryStreamExt;
use overspill::OverspillRuntime;
use overspill_session::{Error, Kind, Left, Limits, Result, Session};

const TWO_THREADS: usize = 2;

fn session_with(limits: &Limits) -> Session {
    Session::open(limits, &[], OverspillRuntime::default()).unwrap()
}

fn session() -> Session {
    session_with(&Limits { memory: 64_000_000, threads: TWO_THREADS, ..Limits::of_this_machine() })
}

/// The rows of a statement, as a table.
async fn rows(session: &Session, sql: &str) -> Result<String> {
    let batches: Vec<_> = session.run(sql).await?.try_collect().await?;
    Ok(pretty_format_batches(&batches).unwrap().to_string())
}

async fn error(session: &Session, sql: &str) -> Error {
    rows(session, sql).await.unwrap_err()
}

/// A query that takes minutes.
const LONG: &str = "SELECT count(*) FROM range(10000000) a, range(1000000) b WHERE a.value * b.value = -1";

#[tokio::test]
async fn statements_tell_what_their_rows_are() {
    let session = session();
    for (sql, kind) in [
        ("CREATE TABLE t AS SELECT value AS a FROM range(10)", Kind::Nothing),
        ("SELECT a FROM t", Kind::Rows),
        ("EXPLAIN SELECT a FROM t", Kind::Explanation),
        ("SUMMARIZE t", Kind::Rows),
    ] {
        let results = session.run(sql).await.unwrap();
        assert_eq!(results.kind(), kind, "{sql}");
        let columns = results.schema().fields().len();
        let batches: Vec<_> = results.try_collect().await.unwrap();
        assert!(batches.iter().all(|batch| batch.num_columns() == columns), "{sql}");
        assert_eq!(batches.is_empty(), kind == Kind::Nothing, "{sql}");
    }
    let inserted = session.run("INSERT INTO t SELECT value FROM range(7)").await.unwrap();
    assert_eq!((inserted.kind(), inserted.count().await.unwrap()), (Kind::Count, 7));
    assert!(rows(&session, "SELECT count(*) AS n FROM t").await.unwrap().contains("| 17 |"));
}

#[tokio::test]
async fn errors_have_a_place_and_a_suggestion() {
    let session = session();
    session.run("CREATE TABLE orders AS SELECT value AS amount FROM range(3)").await.unwrap();
    for (sql, place, suggestion) in [
        ("SELECT amount,\n  amonut FROM orders", (2, 3), Some("orders.amount")),
        ("SELECT * FROM order5", (1, 15), Some("orders")),
        ("SELECT amount FROM orders WHERE", (1, 32), None),
        ("SHOW overspill.stratgy", (1, 1), Some("overspill.strategy")),
    ] {
        let error = error(&session, sql).await;
        assert_eq!(error.suggestion(), suggestion, "{error}");
        assert!(suggestion.is_none_or(|name| error.to_string().contains(name)), "{error}");
        if place != (1, 1) {
            assert_eq!(error.place().map(|at| (at.line, at.column)), Some(place), "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_is_cancelled_from_elsewhere() {
    let session = session();
    let mut results = session.run(LONG).await.unwrap();
    let other = session.clone();
    let cancelled = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        other.cancel().await.unwrap()
    });
    let start = Instant::now();
    let error = results.try_next().await.unwrap_err();
    assert!(error.to_string().contains("cancelled") && start.elapsed() < Duration::from_secs(10), "{error}");
    assert!(results.try_next().await.unwrap().is_none());
    assert_eq!(cancelled.await.unwrap(), Left::Nothing);
    drop(results);
    assert!(rows(&session, "SELECT 1 AS one").await.unwrap().contains("| 1   |"));
}

#[tokio::test]
async fn dropped_results_stop_their_statement() {
    let session = session();
    let results = session.run(LONG).await.unwrap();
    let error = error(&session, "SELECT 1").await;
    assert!(error.to_string().starts_with("Another statement of this session is running"), "{error}");
    drop(results);
    assert_eq!(session.cancel().await.unwrap(), Left::Nothing);
    rows(&session, "SELECT 1").await.unwrap();
}

#[tokio::test]
async fn a_setting_is_named_where_it_is_wrong() {
    let limits = Limits { threads: TWO_THREADS, ..Limits::of_this_machine() };
    for (key, value, says) in [
        ("overspill.strategy", "fast", "is none of"),
        ("overspill.stratgy", "radix", "no setting"),
        ("datafusion.runtime.memory_limit", "1G", "limits of the session"),
    ] {
        let settings = [(key.to_owned(), value.to_owned())];
        let error = Session::open(&limits, &settings, OverspillRuntime::default()).err().unwrap().to_string();
        assert!(error.contains(key) && error.contains(says), "{error}");
    }
}

#[tokio::test]
async fn limits_are_shown_as_they_are_now() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let limits = Limits {
        memory: 64_000_000,
        temp: Some(3_000_000_000),
        temp_dir: Some(first.path().to_path_buf()),
        threads: TWO_THREADS,
    };
    let session = session_with(&limits);
    let shown = async |name: &str| rows(&session, &format!("SHOW datafusion.runtime.{name}")).await.unwrap();
    assert!(shown("memory_limit").await.contains("| 64MB "));
    assert!(shown("max_temp_directory_size").await.contains("| 3GB "));
    rows(&session, "SET datafusion.runtime.memory_limit = '80MB'").await.unwrap();
    assert!(shown("memory_limit").await.contains("| 80MB "));
    // DataFusion makes a new disk manager, with a limit of its own.
    let set = format!("SET datafusion.runtime.temp_directory = '{}'", second.path().display());
    rows(&session, &set).await.unwrap();
    assert!(!shown("max_temp_directory_size").await.contains("| 3GB "));
}

#[tokio::test]
async fn a_closed_session_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let temp_dir = Some(folder.path().to_path_buf());
    let limits = Limits { memory: 16_000_000, temp: None, temp_dir, threads: TWO_THREADS };
    let session = session_with(&limits);
    let results = session.run("SELECT a.value FROM range(3000000) a JOIN range(3000000) b ON a.value = b.value").await;
    let monitor = results.as_ref().unwrap().monitor();
    let found: usize = results.unwrap().try_fold(0, async |sum, batch| Ok(sum + batch.num_rows())).await.unwrap();
    let progress = monitor.progress();
    assert_eq!((found, progress.rows_read, progress.joins[0].output_rows), (3_000_000, 6_000_000, 3_000_000));
    assert!(progress.spilled_bytes > 0, "{progress:?}");
    assert!(folder.path().read_dir().unwrap().next().is_some());
    let other = session.clone();
    std::thread::spawn(move || other.close()).join().unwrap();
    assert!(error(&session, "SELECT 1").await.to_string().contains("closed"));
    drop((session, monitor));
    assert!(folder.path().read_dir().unwrap().next().is_none());
}

#[tokio::test]
async fn rows_of_a_shared_subplan_are_read_once() {
    let session = session();
    let sql = "WITH counts AS (SELECT value % 10 AS digit, count(*) AS n FROM range(1000) GROUP BY value % 10) \
               SELECT a.n FROM counts a JOIN counts b ON a.digit = b.digit AND a.n = b.n";
    let results = session.run(sql).await.unwrap();
    let monitor = results.monitor();
    let found: usize = results.try_fold(0, async |sum, batch| Ok(sum + batch.num_rows())).await.unwrap();
    assert_eq!((found, monitor.progress().rows_read), (10, 1000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_only_change_the_session_are_watched() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet").display().to_string();
    let limits = Limits { memory: 200_000_000, temp: None, temp_dir: None, threads: TWO_THREADS };
    let session = session_with(&limits);
    rows(&session, &format!("COPY (SELECT value % 10007 AS k FROM range(3000000)) TO '{path}'")).await.unwrap();
    for statement in [
        "CREATE TABLE t AS SELECT k FROM (SELECT value % 10007 AS k FROM range(3000000)) GROUP BY k".to_owned(),
        format!("CREATE INDEX i ON '{path}' (k)"),
    ] {
        let (watched, running) = (session.monitor(), session.clone());
        let sql = statement.clone();
        let statement_runs = tokio::spawn(async move { rows(&running, &sql).await.map(drop) });
        let mut most = 0;
        while !statement_runs.is_finished() {
            most = most.max(watched.progress().rows_read);
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        statement_runs.await.unwrap().unwrap();
        assert!(most > 0 && most <= 3_000_000, "{statement}: {most}");
        assert!(watched.plan().is_none(), "{statement}");
    }
}
