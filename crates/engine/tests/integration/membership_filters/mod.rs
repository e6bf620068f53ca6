//! Rows that are dropped far below a join, by the keys of its build side: where that is planned, and that answers stay the same.

mod build_sides;

use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, collect};

use crate::harness::plan::PlanReport;
use crate::harness::rows::Answer;
use crate::harness::run::{Run, is_out_of_memory};
use crate::harness::session::{Engine, Memory, Session, Settings};

/// Ten keys of `few` are in `some` and in `many` as well. `few` also has nulls, and keys that no other table has.
const TABLES: [&str; 3] = [
    "CREATE TABLE few AS SELECT CASE WHEN value % 5 = 4 THEN NULL ELSE value * 700 END AS k, value % 3 AS f \
     FROM generate_series(0, 12) UNION ALL SELECT -5, 1",
    "CREATE TABLE some AS SELECT CASE WHEN value % 11 = 10 THEN NULL ELSE value END AS k, value % 10 AS g, \
     'text ' || (value % 13) AS t FROM generate_series(0, 9999)",
    "CREATE TABLE many AS SELECT CASE WHEN value % 17 = 16 THEN NULL ELSE value % 12000 END AS k, value AS v, \
     value % 10 AS g FROM generate_series(0, 39999)",
];

async fn session(engine: Engine, memory: Memory) -> Session {
    // The written order stays, so that `few` is on the build side.
    let settings = Settings { join_reordering: false, ..Settings::default() };
    filled(Session::open(engine, &settings, memory).unwrap()).await
}

async fn filled(session: Session) -> Session {
    for table in TABLES {
        session.ctx.sql(table).await.unwrap().collect().await.unwrap();
    }
    session
}

async fn run(session: &Session, sql: &str) -> Run {
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

/// Queries in which filters save work, with the number of nodes that drop rows, and how many they drop at least.
const DROPPING: [(&str, usize, usize); 16] = [
    // Through a join, to the side of the key, and by the equality to the other side.
    (
        "SELECT sum(v), count(*) FROM few JOIN (SELECT some.k, v FROM some JOIN many ON some.k = many.k) AS j ON few.k = j.k",
        2,
        45_000,
    ),
    (
        "SELECT sum(v), count(*) FROM few JOIN (SELECT many.k, v FROM some JOIN many ON some.k = many.k) AS j ON few.k = j.k",
        2,
        45_000,
    ),
    // Not by an equality with another column.
    (
        "SELECT sum(v), count(*) FROM few JOIN (SELECT some.k, v FROM some JOIN many ON some.g = many.g AND many.v < 900) AS j ON few.k = j.k",
        1,
        9_900,
    ),
    // An outer side, and the inner side by the equality.
    (
        "SELECT sum(v), count(j.k) FROM few JOIN (SELECT some.k, v FROM some LEFT JOIN many ON some.k = many.k) AS j ON few.k = j.k",
        2,
        45_000,
    ),
    (
        "SELECT sum(v), count(j.k) FROM few JOIN (SELECT many.k, v FROM some RIGHT JOIN many ON some.k = many.k) AS j ON few.k = j.k",
        2,
        45_000,
    ),
    // Below semi and anti joins.
    (
        "SELECT count(*), sum(m.k) FROM few JOIN (SELECT k FROM many WHERE k NOT IN (SELECT k FROM some WHERE k IS NOT NULL AND g = 3)) AS m ON few.k = m.k",
        1,
        39_000,
    ),
    (
        "SELECT count(*), sum(m.k) FROM few JOIN (SELECT k FROM many WHERE EXISTS (SELECT 1 FROM some WHERE some.k = many.k)) AS m ON few.k = m.k",
        2,
        45_000,
    ),
    (
        "SELECT count(*), sum(m.k) FROM few JOIN (SELECT k FROM many WHERE NOT EXISTS (SELECT 1 FROM some WHERE some.k = many.k)) AS m ON few.k = m.k",
        2,
        45_000,
    ),
    // By group keys.
    (
        "SELECT sum(s), count(*) FROM few JOIN (SELECT k, sum(v) AS s FROM many GROUP BY k) AS m ON few.k = m.k",
        1,
        39_000,
    ),
    (
        "SELECT sum(s), count(*) FROM few JOIN (SELECT k, g, sum(v) AS s FROM many GROUP BY g, k HAVING count(*) > 1) AS m ON few.k = m.k",
        1,
        39_000,
    ),
    (
        "SELECT sum(n), count(*) FROM few JOIN (SELECT DISTINCT k, count(*) AS n FROM (SELECT some.k FROM some JOIN many ON some.k = many.k) AS j GROUP BY k) AS m ON few.k = m.k",
        2,
        45_000,
    ),
    // Above the part of an aggregate that makes several groups of a row.
    (
        "SELECT count(*), sum(n) FROM few JOIN (SELECT k, count(*) AS n FROM many GROUP BY ROLLUP (k, g)) AS m ON few.k = m.k",
        1,
        10_000,
    ),
    // Through unions.
    (
        "SELECT sum(s), count(*) FROM few JOIN (SELECT k, sum(g) AS s FROM (SELECT k, g FROM many UNION ALL SELECT k, g FROM some) AS u GROUP BY k) AS m ON few.k = m.k",
        2,
        45_000,
    ),
    // Keys of several columns.
    (
        "SELECT sum(s), count(*) FROM (SELECT DISTINCT k, f FROM few) AS few JOIN (SELECT k, g, sum(v) AS s FROM many GROUP BY g, k) AS m ON few.k = m.k AND few.f = m.g",
        1,
        39_000,
    ),
    // Texts, as a Bloom filter.
    (
        "SELECT sum(n), count(*) FROM (SELECT 'text ' || f AS t FROM few WHERE f < 2) AS few JOIN (SELECT t, count(*) AS n FROM some GROUP BY t) AS m ON few.t = m.t",
        1,
        8_000,
    ),
    // An outer join that keeps its build side.
    (
        "SELECT sum(s), count(*), count(f) FROM few LEFT JOIN (SELECT k, sum(v) AS s FROM many GROUP BY k) AS m ON few.k = m.k",
        1,
        39_000,
    ),
];

/// Queries in which rows of the probe side with other keys matter, or in which a filter would save nothing.
const KEEPING: [&str; 8] = [
    "SELECT sum(s), count(*), count(f) FROM few RIGHT JOIN (SELECT k, sum(v) AS s FROM many GROUP BY k) AS m ON few.k = m.k",
    "SELECT sum(s), count(*), count(f) FROM few FULL JOIN (SELECT k, sum(v) AS s FROM many GROUP BY k) AS m ON few.k = m.k",
    "SELECT count(*), sum(v) FROM few JOIN many ON few.k = many.k",
    "SELECT count(*), sum(s) FROM few JOIN (SELECT k, sum(v) AS s FROM many GROUP BY k ORDER BY s DESC, k LIMIT 50) AS m ON few.k = m.k",
    "SELECT count(*), sum(s) FROM few JOIN (SELECT g, sum(v) AS s FROM many GROUP BY g) AS m ON few.k = m.s",
    "SELECT count(*), sum(s) FROM few JOIN (SELECT k % 100 AS k, sum(v) AS s FROM many GROUP BY k % 100) AS m ON few.k = m.k + 1",
    "SELECT count(*) FROM few WHERE k NOT IN (SELECT k FROM many WHERE k IS NOT NULL GROUP BY k)",
    "SELECT count(*), sum(r) FROM few JOIN (SELECT k, row_number() OVER (ORDER BY v) AS r FROM many) AS m ON few.k = m.k",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_dropped_where_keys_come_from() {
    let stock = session(Engine::Stock, Memory::Ample).await;
    let ours = session(Engine::Overspill, Memory::Ample).await;
    let off = session(Engine::Overspill, Memory::Ample).await;
    off.ctx.sql("SET overspill.membership_filters = false").await.unwrap();
    for (sql, nodes, least) in DROPPING {
        let expected = run(&stock, sql).await.answer.unwrap();
        let found = run(&ours, sql).await;
        assert_eq!(found.answer.unwrap().difference(&expected), None, "{sql}\n{}", found.plan);
        let dropped = &found.report.dropped_rows;
        assert_eq!(dropped.len(), nodes, "{sql}\n{}", found.plan);
        assert!(dropped.iter().sum::<usize>() >= least, "{dropped:?}: {sql}\n{}", found.plan);
        let without = run(&off, sql).await;
        assert_eq!(without.answer.unwrap().difference(&expected), None, "{sql}");
        assert!(without.report.dropped_rows.is_empty() && !without.plan.contains("MembershipExec"), "{sql}");
        assert_eq!(ours.leftovers().await, None, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_matter_are_kept() {
    let stock = session(Engine::Stock, Memory::Ample).await;
    let ours = session(Engine::Overspill, Memory::Ample).await;
    for sql in KEEPING {
        let expected = run(&stock, sql).await.answer.unwrap();
        let found = run(&ours, sql).await;
        assert_eq!(found.answer.unwrap().difference(&expected), None, "{sql}\n{}", found.plan);
        assert!(found.report.dropped_rows.is_empty(), "{sql}\n{}", found.plan);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn little_memory_changes_no_answer() {
    agree_in(&[2 << 20, 4 << 20, 16 << 20], DROPPING.iter().map(|(sql, ..)| *sql)).await;
}

/// Checks that queries give the rows of the stock engine in each of these limits, in bytes, or refuse for lack of memory.
async fn agree_in(limits: &[usize], queries: impl Iterator<Item = &'static str>) {
    let stock = session(Engine::Stock, Memory::Ample).await;
    for sql in queries {
        let expected = run(&stock, sql).await.answer.unwrap();
        for limit in limits {
            let ours = session(Engine::Overspill, Memory::Greedy(*limit)).await;
            let found = run(&ours, sql).await;
            match found.answer {
                Ok(answer) => assert_eq!(answer.difference(&expected), None, "{sql}\n{}", found.plan),
                Err(error) => assert!(is_out_of_memory(&error), "{sql}: {error}"),
            }
            assert_eq!(ours.leftovers().await, None, "{sql}");
        }
    }
}

/// A plan and a copy of it share the places where joins leave keys, but not the keys, if both are executed at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executions_of_a_plan_do_not_share_keys() {
    let stock = session(Engine::Stock, Memory::Ample).await;
    let ours = session(Engine::Overspill, Memory::Ample).await;
    for (sql, ..) in DROPPING {
        let expected = run(&stock, sql).await.answer.unwrap();
        let plan = ours.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let copy = reset_plan_states(Arc::clone(&plan)).unwrap();
        let (first, second) = tokio::join!(answer(&ours, &plan), answer(&ours, &copy));
        for found in [first, second] {
            assert_eq!(found.unwrap().difference(&expected), None, "{sql}");
        }
        // Tasks of these executions may still be about to end.
        let mut has_keys = false;
        for _ in 0..100 {
            let alone = reset_plan_states(Arc::clone(&plan)).unwrap();
            assert_eq!(answer(&ours, &alone).await.unwrap().difference(&expected), None, "{sql}");
            has_keys |= PlanReport::of(&alone).dropped_rows.iter().sum::<usize>() > 0;
            if has_keys {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(has_keys, "{sql}: no keys after executions that overlapped");
    }
}

async fn answer(session: &Session, plan: &Arc<dyn ExecutionPlan>) -> Result<Answer> {
    Answer::new(plan.schema(), collect(Arc::clone(plan), session.ctx.task_ctx()).await?)
}

/// Each stream has a build side of its own: rows are dropped once all have been read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_all_build_sides_are_put_together() {
    let stock = session(Engine::Stock, Memory::Ample).await;
    for target_partitions in [1, 2, 3, 8] {
        let settings = Settings { join_reordering: false, partitioned: true, target_partitions, ..Settings::default() };
        let ours = filled(Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap()).await;
        ours.ctx.sql("SET datafusion.optimizer.repartition_joins = true").await.unwrap();
        for (sql, ..) in DROPPING {
            let expected = run(&stock, sql).await.answer.unwrap();
            let found = run(&ours, sql).await;
            assert_eq!(found.answer.unwrap().difference(&expected), None, "{sql}\n{}", found.plan);
        }
    }
}
