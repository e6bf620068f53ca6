//! Joins whose build side turns out much larger than it was estimated.

use arrow::array::Int64Array;
use overspill::{BuildSide, Choice};

use crate::harness::run::Run;
use crate::harness::session::{Engine, Memory, Session, Settings};

/// The rows of the build side. The filter drops none of them. The setting makes DataFusion estimate that it keeps one row in a hundred.
const LARGE: usize = 400_000;
/// Those of the other side.
const SMALL: usize = 9_000;

/// A session with `large` and `small`; some keys of either have no partner.
async fn session(settings: &Settings, memory: Memory) -> Session {
    let session = Session::open(Engine::Overspill, settings, memory).unwrap();
    for sql in [
        "SET datafusion.optimizer.default_filter_selectivity = 1".to_owned(),
        format!(
            "CREATE TABLE large AS SELECT nullif(value % 10007, 3) AS k, value AS v, concat('text ', value % 77) AS t FROM range({LARGE})"
        ),
        format!("CREATE TABLE small AS SELECT nullif(value * 2, 8) AS k, value AS w FROM range({SMALL})"),
    ] {
        session.ctx.sql(&sql).await.unwrap().collect().await.unwrap();
    }
    session
}

fn settings(partitioned: bool) -> Settings {
    Settings { partitioned, batch_size: 8192, build_side: Choice::AUTO, ..Settings::default() }
}

/// Every row of `large` passes, which no estimate knows.
const FILTER: &str = "abs(v) % 1000003 >= 0";

fn queries() -> Vec<String> {
    let mut queries: Vec<String> = [
        format!("SELECT count(*), sum(v), sum(w), min(t) FROM large JOIN small ON large.k = small.k WHERE {FILTER}"),
        format!("SELECT * FROM large JOIN small ON large.k = small.k AND v % 5 < w % 7 WHERE {FILTER} AND w < 50"),
        format!("SELECT count(*) FROM large JOIN small USING (k) WHERE {FILTER}"),
        format!("SELECT small.* FROM small WHERE k IN (SELECT k FROM large WHERE {FILTER})"),
        format!("SELECT small.* FROM small WHERE NOT EXISTS (SELECT 1 FROM large WHERE large.k = small.k AND {FILTER})"),
        format!("SELECT small.*, k IN (SELECT k FROM large WHERE {FILTER} AND k IS NOT NULL) OR w = 7 AS m FROM small WHERE k IS NOT NULL"),
        format!("SELECT small.* FROM small WHERE k NOT IN (SELECT k FROM large WHERE {FILTER} AND k IS NOT NULL)"),
        format!("SELECT count(*), sum(v), count(w) FROM (SELECT * FROM large WHERE {FILTER}) l JOIN small ON l.k IS NOT DISTINCT FROM small.k"),
    ]
    .into();
    for kind in ["LEFT", "RIGHT", "FULL"] {
        queries.push(format!(
            "SELECT count(*), count(v), sum(v), count(w), sum(w), count(l.k), count(small.k) FROM (SELECT * FROM large WHERE {FILTER}) l \
             {kind} JOIN small ON l.k = small.k"
        ));
        queries.push(format!(
            "SELECT count(*), count(v), sum(v), count(w), sum(w) FROM small {kind} JOIN (SELECT * FROM large WHERE {FILTER}) l \
             ON l.k = small.k AND v % 3 = w % 3"
        ));
    }
    queries
}

async fn run(session: &Session, sql: &str) -> Run {
    let run = Run::of(&session.ctx, session.ctx.sql(sql).await).await;
    assert_eq!(session.leftovers().await, None, "{sql}");
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sides_that_surprise_change_roles_in_joins_of_all_kinds() {
    for partitioned in [false, true] {
        let session_of = async |side: Option<BuildSide>| {
            let build_side = side.map(Into::into).unwrap_or_default();
            session(&Settings { build_side, ..settings(partitioned) }, Memory::Ample).await
        };
        let (auto, planned) = (session_of(None).await, session_of(Some(BuildSide::Planned)).await);
        let exchanged = session_of(Some(BuildSide::Exchanged)).await;
        let mut swaps = 0;
        for sql in queries() {
            let expected = run(&planned, &sql).await;
            assert_eq!(expected.report.side_swaps, 0, "{sql}\n{}", expected.plan);
            let expected = expected.answer.unwrap();
            for session in [&auto, &exchanged] {
                let run = run(session, &sql).await;
                swaps += usize::from(run.report.side_swaps > 0);
                let answer = run.answer.unwrap_or_else(|error| panic!("{sql}: {error}\n{}", run.plan));
                assert_eq!(answer.difference(&expected), None, "{sql}\n{}", run.plan);
            }
        }
        // NOT IN keeps its sides, and a few plans have the large side as probe side.
        assert!(swaps > queries().len(), "{swaps}");
    }
}

/// The large side is read to its end in neither of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_side_is_not_stored() {
    let session = session(&settings(false), Memory::Ample).await;
    let sql = &queries()[0];
    let run = run(&session, sql).await;
    assert_eq!(run.report.side_swaps, 1, "{}", run.plan);
    let answer = run.answer.unwrap();
    let count = answer.batches[0].column(0).as_any().downcast_ref::<Int64Array>().unwrap().value(0);
    let partners = (0..LARGE).filter(|value| {
        let key = value % 10007;
        key != 3 && key != 8 && key % 2 == 0 && key / 2 < SMALL
    });
    assert_eq!(count as usize, partners.count());
}

/// The build side ends first: it is stored as planned, and what was read of the other side is probed with the rest of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_that_ends_first_is_stored() {
    for partitioned in [false, true] {
        let session = session(&settings(partitioned), Memory::Ample).await;
        let huge = "CREATE TABLE huge AS SELECT value % 500000 AS h FROM range(2000000)";
        session.ctx.sql(huge).await.unwrap().collect().await.unwrap();
        // Rows of memory without a filter would be there at once.
        let sql = format!(
            "SELECT count(*), sum(v), sum(h) FROM (SELECT v FROM large WHERE {FILTER}) \
             JOIN (SELECT h FROM huge WHERE abs(h) % 1000003 >= 0) ON v = h"
        );
        let run = run(&session, &sql).await;
        assert_eq!(run.report.side_swaps, 0, "{}", run.plan);
        assert!(run.plan.contains("build~4.00 K (x100)"), "{}", run.plan);
        let answer = run.answer.unwrap();
        let [count, of_large, of_huge] = [0, 1, 2]
            .map(|column| answer.batches[0].column(column).as_any().downcast_ref::<Int64Array>().unwrap().value(0));
        let sum = (0..LARGE as i64).sum::<i64>() * 4;
        assert_eq!([count, of_large, of_huge], [4 * LARGE as i64, sum, sum]);
    }
}

/// With little memory the race is given up, or won in it; in either case the answer is right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sides_keep_within_their_memory() {
    let planned = session(&Settings { build_side: BuildSide::Planned.into(), ..settings(false) }, Memory::Ample).await;
    for limit in [3 << 20, 12 << 20, 40 << 20] {
        for partitioned in [false, true] {
            let little = session(&settings(partitioned), Memory::JoinLimit(limit)).await;
            for sql in [&queries()[0], &queries()[8], &queries()[12]] {
                let expected = run(&planned, sql).await.answer.unwrap();
                let run = run(&little, sql).await;
                let answer = run.answer.unwrap_or_else(|error| panic!("{limit}: {sql}: {error}\n{}", run.plan));
                assert_eq!(answer.difference(&expected), None, "{limit}: {sql}\n{}", run.plan);
                assert!(little.pool.join_peak() <= limit + (2 << 20), "{limit}: {}", little.pool.join_peak());
            }
        }
    }
}

/// A stream that is dropped while its sides are read, or after they have changed roles, leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_end_races() {
    for build_side in [Choice::AUTO, BuildSide::Exchanged.into()] {
        let session = session(&Settings { build_side, ..settings(false) }, Memory::Ample).await;
        for rows in [1, 100, 100_000] {
            let sql = format!("SELECT v, w FROM large JOIN small ON large.k = small.k WHERE {FILTER} LIMIT {rows}");
            let run = run(&session, &sql).await;
            assert_eq!(run.answer.unwrap().rows(), rows, "{}", run.plan);
        }
    }
}
