//! Waiting, running and being stopped.

use std::time::{Duration, Instant};

use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::{ExecutionPlanProperties, execute_stream};
use datafusion::prelude::SessionContext;
use futures::{StreamExt, TryStreamExt};
use overspill::scheduler::SchedulerConfig;
use overspill::{AdmissionExec, OverspillConfig};
use overspill_schedule::{What, check};

use super::{Sessions, is_running, one_at_a_time, text, waits};

const MIB: usize = 1 << 20;

/// A query that returns its first rows soon and its last rows late, and whose stream is read slowly.
const LONG: &str = "SELECT value FROM range(100000000)";

async fn stream(session: &SessionContext, sql: &str) -> SendableRecordBatchStream {
    session.sql(sql).await.unwrap().execute_stream().await.unwrap()
}

/// A query that has returned its first rows, and runs as long as it is kept.
async fn running(session: &SessionContext) -> SendableRecordBatchStream {
    let mut rows = stream(session, LONG).await;
    assert!(rows.next().await.unwrap().unwrap().num_rows() > 0);
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_waits_until_another_is_given_up() {
    let sessions = Sessions::new(one_at_a_time(), 64 * MIB);
    let [one, two] = ["a", "b"].map(|user| sessions.session(user, OverspillConfig::default()));
    let first = running(&one).await;
    let second = tokio::spawn(async move { text(&two, "SELECT count(*) FROM range(10)").await });
    sessions
        .reach("one runs, one waits", |states| states.len() == 2 && is_running(&states[0]) && waits(&states[1]))
        .await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(waits(&sessions.states()[1]));
    drop(first);
    assert!(second.await.unwrap().contains("10"));
    sessions.assert_nothing_left().await;
    check(&sessions.scheduler.log(), &sessions.scheduler.config().gpu_limits, 1).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_is_cancelled_in_any_state() {
    let sessions = Sessions::new(one_at_a_time(), 64 * MIB);
    let session = sessions.session("a", OverspillConfig::default());
    let mut first = running(&session).await;
    let mut second = stream(&session, LONG).await;
    let waiting = tokio::spawn(async move { second.next().await });
    sessions.reach("one waits", |states| states.iter().any(waits)).await;
    let ids: Vec<_> = sessions.scheduler.queries().iter().map(|query| query.id).collect();
    let start = Instant::now();
    assert!(sessions.scheduler.cancel(ids[1]));
    let error = waiting.await.unwrap().unwrap().unwrap_err().strip_backtrace();
    assert!(error.contains("The query was cancelled"), "{error}");
    assert!(sessions.scheduler.cancel(ids[0]));
    sessions.assert_nothing_left().await;
    let error = first.try_next().await.unwrap_err().strip_backtrace();
    assert!(error.contains("The query was cancelled") && start.elapsed() < Duration::from_secs(1), "{error}");
    assert!(first.next().await.is_none());
    sessions.assert_nothing_left().await;
    assert!(!sessions.scheduler.cancel(ids[0]));
}

/// A cancelled query leaves the queue even if no one polls its stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_query_that_nobody_polls_takes_no_slot() {
    let sessions = Sessions::new(one_at_a_time(), 64 * MIB);
    let session = sessions.session("a", OverspillConfig::default());
    let first = running(&session).await;
    let mut second = stream(&session, LONG).await;
    assert!(futures::poll!(second.next()).is_pending());
    let id = sessions.scheduler.queries()[1].id;
    assert!(sessions.scheduler.cancel(id));
    drop(first);
    // The second is there, and the third runs.
    assert!(text(&session, "SELECT count(*) FROM range(7)").await.contains('7'));
    assert_eq!(sessions.scheduler.queries().len(), 1);
    assert!(second.next().await.unwrap().is_err());
    drop(second);
    sessions.assert_nothing_left().await;
    check(&sessions.scheduler.log(), &sessions.scheduler.config().gpu_limits, 1).unwrap();
}

/// No one reads the first stream after its first batch. The time limit releases what it holds, and the next read gets the error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_limit_holds_in_any_state() {
    let limit = Duration::from_millis(300);
    let sessions = Sessions::new(SchedulerConfig { time_limit: Some(limit), ..one_at_a_time() }, 64 * MIB);
    let session = sessions.session("a", OverspillConfig::default());
    assert!(text(&session, "SELECT 7").await.contains('7'));
    let mut first = running(&session).await;
    // It waits for the first, runs when that is stopped, and is stopped in turn.
    let mut second = stream(&session, LONG).await;
    let error = loop {
        if let Err(error) = second.next().await.expect("the query is not done by then") {
            break error.strip_backtrace();
        }
    };
    assert!(error.contains("it has taken 300ms, which is its time limit"), "{error}");
    sessions.assert_nothing_left().await;
    assert!(text(&session, "SELECT 8").await.contains('8'));
    let error = first.try_next().await.unwrap_err().strip_backtrace();
    assert!(error.contains("time limit"), "{error}");
    sessions.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_not_polled_hold_nothing_and_any_order_will_do() {
    let sessions = Sessions::new(one_at_a_time(), 64 * MIB);
    let session = sessions.session("a", OverspillConfig::default());
    let frame = session.sql("SELECT value, count(*) FROM range(50000) GROUP BY value").await.unwrap();
    let plan = frame.create_physical_plan().await.unwrap();
    assert!(plan.is::<AdmissionExec>());
    let partitions = plan.output_partitioning().partition_count();
    assert_eq!(partitions, 2);
    let never_polled = plan.execute(0, session.task_ctx()).unwrap();
    assert_eq!(sessions.states(), []);
    let mut rows = 0;
    // One after the other, the last first.
    for partition in (0..partitions).rev() {
        let batches: Vec<_> = plan.execute(partition, session.task_ctx()).unwrap().try_collect().await.unwrap();
        rows += batches.iter().map(|batch| batch.num_rows()).sum::<usize>();
    }
    assert_eq!(rows, 50_000);
    drop((never_polled, plan));
    sessions.assert_nothing_left().await;
    assert_eq!(sessions.scheduler.log().iter().filter(|entry| matches!(entry.what, What::Arrived(_))).count(), 2);
}

/// One query at a time is enough for statements that plan others, or run them within.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_do_not_wait_for_themselves() {
    let sessions = Sessions::new(one_at_a_time(), 64 * MIB);
    let session = sessions.session("a", OverspillConfig::default());
    let file = sessions.temp.path().join("copied.parquet").display().to_string();
    for statement in [
        "CREATE TABLE t AS SELECT value AS k, value * 2 AS v FROM range(1000)",
        "INSERT INTO t SELECT value, (SELECT max(v) FROM t) FROM range(10)",
        "CREATE INDEX of_t ON t (k)",
        "DELETE FROM t WHERE k > 900",
        &format!("COPY t TO '{file}'"),
        "EXPLAIN SELECT * FROM t",
        "SHOW TABLES",
    ] {
        text(&session, statement).await;
    }
    let answer = text(
        &session,
        "SELECT count(*) FROM t WHERE v < (SELECT avg(v) FROM t) AND k IN (SELECT k FROM t UNION SELECT 5)",
    )
    .await;
    let expected = {
        let stock = SessionContext::new();
        stock.sql("CREATE TABLE t AS SELECT value AS k, value * 2 AS v FROM range(901)").await.unwrap();
        stock.sql("INSERT INTO t SELECT value, 1998 FROM range(10)").await.unwrap().collect().await.unwrap();
        let sql = "SELECT count(*) FROM t WHERE v < (SELECT avg(v) FROM t) AND k IN (SELECT k FROM t UNION SELECT 5)";
        let batches = stock.sql(sql).await.unwrap().collect().await.unwrap();
        arrow::util::pretty::pretty_format_batches(&batches).unwrap().to_string()
    };
    assert_eq!(answer, expected);
    text(&session, "DROP TABLE t").await;
    std::fs::remove_file(file).unwrap();
    sessions.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brief_queries_run_beside_others() {
    let config = SchedulerConfig { brief: Duration::from_millis(10), ..one_at_a_time() };
    let sessions = Sessions::new(config, 64 * MIB);
    let session = sessions.session("a", OverspillConfig::default());
    let first = running(&session).await;
    assert!(text(&session, "SELECT 1 + 1").await.contains('2'));
    assert_eq!(sessions.states().len(), 1);
    drop(first);
    sessions.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_that_run_share_the_memory() {
    // The third is there beside two that are kept open.
    let config = SchedulerConfig { brief: Duration::ZERO, most_running: 4, ..SchedulerConfig::default() };
    let sessions = Sessions::new(config, 64 * MIB);
    let session = sessions.session("a", OverspillConfig::default());
    let limits =
        || -> Vec<usize> { sessions.scheduler.queries().iter().filter_map(|query| Some(query.memory?.1)).collect() };
    let first = running(&session).await;
    assert_eq!(limits(), [64 * MIB]);
    let second = running(&session).await;
    assert_eq!(limits(), [32 * MIB; 2]);
    // One list of all values takes more than the part of this query, and cannot spill. The error tells the part.
    let list = "SELECT cardinality(array_agg(value)) FROM range(10000000)";
    let error = session.sql(list).await.unwrap().collect().await.unwrap_err().strip_backtrace();
    assert!(error.contains("3 queries share the memory"), "{error}");
    drop(first);
    sessions.reach("one is left", |states| states.len() == 1).await;
    assert_eq!(limits(), [64 * MIB]);
    drop(second);
    sessions.assert_nothing_left().await;
}

/// With 16 MB for two partitions there is room for one query.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_memory_has_room_for_few_queries() {
    let sessions = Sessions::new(SchedulerConfig { brief: Duration::ZERO, ..SchedulerConfig::default() }, 16_000_000);
    let session = sessions.session("a", OverspillConfig::default());
    let first = running(&session).await;
    let mut second = stream(&session, LONG).await;
    let waiting = tokio::spawn(async move { second.next().await.unwrap().unwrap().num_rows() });
    sessions.reach("the second waits", |states| states.iter().any(waits)).await;
    drop(first);
    assert!(waiting.await.unwrap() > 0);
    sessions.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_shows_waits_and_places() {
    let sessions = Sessions::new(SchedulerConfig::default(), 64 * MIB);
    let session = sessions.session("a", OverspillConfig::default());
    let plan = text(&session, "EXPLAIN SELECT count(*) FROM range(10)").await;
    assert!(plan.contains("AdmissionExec: policy=overspill"), "{plan}");
    let plan = text(&session, "EXPLAIN ANALYZE VERBOSE SELECT count(*) FROM range(10)").await;
    assert!(plan.contains("cpu_admissions{reason=brief}=1") && plan.contains("wait_time="), "{plan}");
}

/// The plan is run again without being planned again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_runs_twice_is_two_queries() {
    let sessions = Sessions::new(one_at_a_time(), 64 * MIB);
    let session = sessions.session("a", OverspillConfig::default());
    let plan = session.sql("VALUES (1), (2)").await.unwrap().create_physical_plan().await.unwrap();
    for _ in 0..2 {
        let batches: Vec<_> =
            execute_stream(std::sync::Arc::clone(&plan), session.task_ctx()).unwrap().try_collect().await.unwrap();
        assert_eq!(batches.len(), 1);
    }
    drop(plan);
    let arrivals = sessions.scheduler.log().iter().filter(|entry| matches!(entry.what, What::Arrived(_))).count();
    assert_eq!(arrivals, 2);
    sessions.assert_nothing_left().await;
}
