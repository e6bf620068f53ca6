//! Aggregates with groups: the rows of stock DataFusion, whatever the keys, the number of groups, the memory and the order of streams.

mod few_groups;
mod grouping_sets;

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect, displayable, execute_stream};
use futures::StreamExt;
use overspill::HybridAggregateExec;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::harness::rows::Answer;
use crate::harness::run::{Run, is_out_of_memory};
use crate::harness::session::{Engine, Memory, Session, Settings};

type Plan = Arc<dyn ExecutionPlan>;

/// `clustered`: 4 rows of each key side by side. `scattered`: most keys once, in no order. `mixed`: all types, nulls, few groups.
const TABLES: [&str; 3] = [
    "CREATE TABLE clustered AS SELECT value / 4 AS k, value % 7 AS v, CAST(value % 100 AS DECIMAL(15, 2)) AS d FROM generate_series(0, 2999999)",
    "CREATE TABLE scattered AS SELECT (value * 7919) % 2000003 AS k, value % 7 AS v, value % 13 AS w FROM generate_series(0, 1499999)",
    "CREATE TABLE mixed AS SELECT CASE WHEN value % 11 = 0 THEN NULL ELSE value % 257 END AS a, \
     CAST(CASE WHEN value % 5 = 0 THEN NULL ELSE value % 31 - 15 END AS INT) AS b, CAST(value % 3 AS SMALLINT) AS c, value % 2 = 0 AS t, \
     CAST(value % 50 AS DECIMAL(20, 3)) AS d, CAST('2024-01-01' AS DATE) + CAST(value % 40 AS INT) AS e, \
     CASE WHEN value % 9 = 0 THEN NULL ELSE value * 37 % 1000 - 500 END AS v, CAST(value % 97 AS DOUBLE) / 4 AS x, \
     'text ' || (value % 19) AS s, \
     CASE WHEN value % 8 = 0 THEN NULL WHEN value % 8 = 1 THEN '' ELSE 'a text of many bytes, number ' || (value % 23) END AS l \
     FROM generate_series(0, 19999)",
];

async fn session(engine: Engine, settings: &Settings, memory: Memory) -> Session {
    let session = Session::open(engine, settings, memory).unwrap();
    for table in TABLES {
        run(&session, table).await.answer.unwrap();
    }
    session
}

/// Another session over the same tables, whose memory no pool counts.
fn over(tables: &Session, engine: Engine, settings: &Settings, memory: Memory) -> Session {
    let session = Session::open(engine, settings, memory).unwrap();
    let catalog = tables.ctx.catalog("datafusion").unwrap();
    session.ctx.register_catalog("datafusion", catalog);
    session
}

async fn run(session: &Session, sql: &str) -> Run {
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

async fn plan(session: &Session, sql: &str) -> Plan {
    session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
}

/// The sum of a metric of all hybrid aggregates of a plan that ran; `None` without any.
fn metric(plan: &Plan, name: &str) -> Option<usize> {
    let mut sum = None;
    plan.apply(|node| {
        if node.is::<HybridAggregateExec>() {
            let metrics = node.metrics().unwrap();
            let found = match name {
                "spill_count" => metrics.spill_count(),
                _ => metrics.sum_by_name(name).map(|value| value.as_usize()),
            };
            *sum.get_or_insert(0) += found.unwrap_or(0);
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    sum
}

async fn answer(session: &Session, plan: &Plan) -> datafusion::common::Result<Answer> {
    Answer::new(plan.schema(), collect(Arc::clone(plan), session.ctx.task_ctx()).await?)
}

const AGGREGATES: [&str; 17] = [
    "count(*)",
    "count(v)",
    "sum(v)",
    "min(v)",
    "max(e)",
    "avg(d)",
    "sum(d)",
    "sum(v) FILTER (WHERE v > 3)",
    "count(*) FILTER (WHERE t)",
    "avg(x)",
    "max(d) FILTER (WHERE b IS NULL)",
    "bool_and(t)",
    "bit_xor(v)",
    "min(x)",
    "max(s)",
    "min(l) FILTER (WHERE v > 0)",
    "count(l)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_aggregates_give_the_rows_of_datafusion() {
    let rng = &mut StdRng::seed_from_u64(11);
    let (mut taken, mut queries) = (0, 0);
    for (partitions, batch_size) in [(1, 500), (2, 1000), (3, 64), (8, 8192)] {
        let settings = Settings { target_partitions: partitions, batch_size, ..Settings::default() };
        let stock = session(Engine::Stock, &settings, Memory::Ample).await;
        let ours = session(Engine::Overspill, &settings, Memory::Ample).await;
        for _ in 0..80 {
            let keys = [
                "a",
                "b",
                "c",
                "t",
                "d",
                "e",
                "a % 7",
                "b + c",
                "s",
                "l",
                "CAST(concat(s, '!') AS BYTEA)",
                "arrow_cast(l, 'LargeUtf8')",
            ];
            let (key_count, function_count) = (rng.random_range(1..4), rng.random_range(0..5));
            let keys: Vec<&str> = keys.choose_multiple(rng, key_count).copied().collect();
            let functions: Vec<&str> = AGGREGATES.choose_multiple(rng, function_count).copied().collect();
            let columns = [keys.as_slice(), &functions].concat().join(", ");
            let filter = *["", "WHERE v > 0", "WHERE v > 100000", "WHERE a IS NULL"].choose(rng).unwrap();
            let having = *["", "HAVING count(*) > 3"].choose(rng).unwrap();
            let sql = format!("SELECT {columns} FROM mixed {filter} GROUP BY {} {having}", keys.join(", "));
            let expected = run(&stock, &sql).await.answer.unwrap();
            let found = run(&ours, &sql).await;
            assert_eq!(found.answer.unwrap().difference(&expected), None, "{sql}\n{}", found.plan);
            taken += usize::from(found.plan.contains("HybridAggregateExec"));
            queries += 1;
            assert_eq!(ours.leftovers().await, None, "{sql}");
        }
    }
    assert!(taken * 10 > queries * 8, "{taken} of {queries}");
}

/// Which aggregates stay DataFusion's, and that the setting leaves all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregates_that_need_more_stay_as_they_are() {
    let ours = session(Engine::Overspill, &Settings::default(), Memory::Ample).await;
    for sql in [
        "SELECT x, count(*) FROM mixed GROUP BY x",
        "SELECT arrow_cast(s, 'Dictionary(Int32, Utf8)'), count(*) FROM mixed GROUP BY 1",
        "SELECT [a, b], count(*) FROM mixed GROUP BY [a, b]",
        "SELECT a, array_agg(v) FROM mixed GROUP BY a",
        "SELECT a, first_value(v ORDER BY v) FROM mixed GROUP BY a",
        "SELECT a, count(DISTINCT v), count(DISTINCT b) FROM mixed GROUP BY a",
        "SELECT min(s) FROM mixed",
        "SELECT DISTINCT a FROM mixed LIMIT 5",
    ] {
        let run = run(&ours, sql).await;
        assert!(run.plan.contains("AggregateExec") && !run.plan.contains("HybridAggregateExec"), "{sql}\n{}", run.plan);
    }
    let sql = "SELECT a, sum(v) FROM mixed GROUP BY a";
    let with = run(&ours, sql).await;
    assert!(with.plan.contains("HybridAggregateExec: gby=[a@0 as a], aggr=["), "{}", with.plan);
    run(&ours, "SET overspill.hybrid_aggregates = false").await.answer.unwrap();
    let without = run(&ours, sql).await;
    assert!(!without.plan.contains("HybridAggregateExec"), "{}", without.plan);
    assert_eq!(with.answer.unwrap().difference(&without.answer.unwrap()), None);
}

/// Arguments of several functions are evaluated once, but not these.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volatile_arguments_are_those_of_one_function() {
    let stock = session(Engine::Stock, &Settings::default(), Memory::Ample).await;
    let ours = over(&stock, Engine::Overspill, &Settings::default(), Memory::Ample);
    let sql = "SELECT count(*) FROM (SELECT a, sum(random()) AS s, avg(random()) * count(*) AS t FROM mixed GROUP BY a) \
               WHERE abs(s - t) < 0.000001";
    let (expected, found) = (run(&stock, sql).await, run(&ours, sql).await);
    assert!(found.plan.contains("HybridAggregateExec"), "{}", found.plan);
    assert_eq!(found.answer.unwrap().difference(&expected.answer.unwrap()), None);
}

/// More groups than a cache holds: those whose rows are side by side are grouped first, others are not.
const MANY_GROUPS: [(&str, bool); 8] = [
    ("SELECT k, count(*), sum(v), avg(d) FROM clustered GROUP BY k", true),
    ("SELECT k, sum(v), max(v) FROM scattered GROUP BY k", false),
    ("SELECT k, w, count(*), sum(v) FILTER (WHERE v > 2) FROM scattered GROUP BY k, w", false),
    ("SELECT k, w, count(CASE WHEN v > 4 THEN 'a text' END), count(*), sum(2) FROM scattered GROUP BY k, w", false),
    ("SELECT k * 1000000007 AS wide, k, avg(v), sum(v), count(w) FROM scattered GROUP BY k * 1000000007, k", false),
    ("SELECT 'the number ' || k AS text, count(*), min(v) FROM clustered GROUP BY 'the number ' || k", true),
    (
        "SELECT 'the long number ' || k AS text, w, sum(v), max('text ' || v) FROM scattered GROUP BY 'the long number ' || k, w",
        false,
    ),
    ("SELECT DISTINCT k, v, w FROM scattered", false),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_groups_are_partitioned() {
    let settings = Settings { batch_size: 8192, ..Settings::default() };
    let stock = session(Engine::Stock, &settings, Memory::Ample).await;
    let ours = session(Engine::Overspill, &settings, Memory::Ample).await;
    let in_one_stream = Settings { target_partitions: 1, ..settings };
    let in_one_stream = over(&stock, Engine::Overspill, &in_one_stream, Memory::Ample);
    for (sql, is_grouped) in MANY_GROUPS {
        let expected = run(&stock, sql).await.answer.unwrap();
        let found = run(&in_one_stream, sql).await;
        assert!(found.plan.contains("HybridAggregateExec"), "{}", found.plan);
        assert_eq!(found.answer.unwrap().difference(&expected), None, "{sql}");
        let plan = plan(&ours, sql).await;
        assert_eq!(answer(&ours, &plan).await.unwrap().difference(&expected), None, "{sql}");
        let [states, ungrouped, spilled] =
            ["partitioned_rows", "ungrouped_rows", "spill_count"].map(|name| metric(&plan, name).unwrap());
        assert!(states >= expected.rows() && spilled == 0, "{states} states, {spilled} files: {sql}");
        assert_eq!(ungrouped == 0, is_grouped, "{ungrouped} of {states}: {sql}");
        drop(plan);
        assert_eq!(ours.leftovers().await, None, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_outgrow_little_memory() {
    let settings = Settings { batch_size: 1024, ..Settings::default() };
    let stock = session(Engine::Stock, &settings, Memory::Ample).await;
    for (sql, _) in MANY_GROUPS {
        let expected = run(&stock, sql).await.answer.unwrap();
        for memory in
            [Memory::Greedy(300 << 10), Memory::Greedy(2 << 20), Memory::Greedy(8 << 20), Memory::Fair(8 << 20)]
        {
            let ours = over(&stock, Engine::Overspill, &settings, memory);
            let plan = plan(&ours, sql).await;
            match answer(&ours, &plan).await {
                Ok(answer) => assert_eq!(answer.difference(&expected), None, "{memory:?}: {sql}"),
                Err(error) => panic!("{memory:?}: {sql}: {error}"),
            }
            assert!(metric(&plan, "spill_count").unwrap() > 0, "{memory:?}: {sql}");
            drop(plan);
            assert_eq!(ours.leftovers().await, None, "{memory:?}: {sql}");
        }
    }
}

/// Joins rely on the partitions of aggregates below them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_those_of_a_repartition() {
    for partitions in [2, 3, 5, 16] {
        let settings = Settings { partitioned: true, target_partitions: partitions, ..Settings::default() };
        let stock = session(Engine::Stock, &settings, Memory::Ample).await;
        let ours = session(Engine::Overspill, &settings, Memory::Ample).await;
        run(&ours, "SET overspill.membership_filters = false").await.answer.unwrap();
        for sql in [
            "SELECT count(*), sum(n), sum(v) FROM (SELECT a, count(*) AS n FROM mixed GROUP BY a) AS g JOIN scattered ON a = k",
            "SELECT count(*), sum(n), sum(v) FROM (SELECT b, e, count(*) AS n FROM mixed GROUP BY b, e) AS g \
             JOIN (SELECT v, b AS o, e AS f FROM mixed WHERE v < 0) AS r ON b = o AND e = f",
            "SELECT a, count(*) FROM (SELECT a, b, count(*) AS n FROM mixed GROUP BY a, b) AS g GROUP BY a",
        ] {
            let expected = run(&stock, sql).await.answer.unwrap();
            let found = run(&ours, sql).await;
            assert!(found.plan.contains("HybridAggregateExec"), "{}", found.plan);
            assert_eq!(found.answer.unwrap().difference(&expected), None, "{partitions}: {sql}\n{}", found.plan);
        }
    }
}

/// Outputs that run one after the other, those that are dropped, and plans that run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_need_not_run_together() {
    let settings = Settings { target_partitions: 3, ..Settings::default() };
    let ours = session(Engine::Overspill, &settings, Memory::Ample).await;
    let sql = "SELECT a, b, count(*), sum(v) FROM mixed GROUP BY a, b";
    let mut node = plan(&ours, sql).await;
    while !node.is::<HybridAggregateExec>() {
        node = Arc::clone(node.children()[0]);
    }
    let expected = answer(&ours, &node).await.unwrap();
    let outputs = node.output_partitioning().partition_count();
    assert_eq!(outputs, 3, "{}", displayable(node.as_ref()).indent(false));
    for _ in 0..2 {
        let mut batches = vec![];
        for output in 0..outputs {
            let mut rows = node.execute(output, ours.ctx.task_ctx()).unwrap();
            while let Some(batch) = rows.next().await {
                batches.push(batch.unwrap());
            }
        }
        assert_eq!(Answer::new(node.schema(), batches).unwrap().difference(&expected), None);
    }
    // An output that begins again, though another one has not, and one that is given up.
    drop(node.execute(1, ours.ctx.task_ctx()).unwrap());
    let mut rows = node.execute(1, ours.ctx.task_ctx()).unwrap();
    assert!(rows.next().await.unwrap().unwrap().num_rows() > 0);
    drop(rows);
    assert_eq!(answer(&ours, &node).await.unwrap().difference(&expected), None);
    let rows = execute_stream(plan(&ours, "SELECT k, sum(v) FROM scattered GROUP BY k").await, ours.ctx.task_ctx());
    let mut rows = rows.unwrap();
    assert!(rows.next().await.unwrap().is_ok());
    drop((rows, node));
    assert_eq!(ours.leftovers().await, None);
}

/// Errors of the input and of a function end the query, and leave nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_come_through() {
    let stock = session(Engine::Stock, &Settings::default(), Memory::Ample).await;
    for memory in [Memory::Ample, Memory::Greedy(2 << 20)] {
        let ours = over(&stock, Engine::Overspill, &Settings::default(), memory);
        for (sql, words) in [
            ("SELECT k, sum(10 / (k - 7919)) FROM scattered GROUP BY k", "Divide by zero"),
            ("SELECT k % 3, sum(v + 9223372036854775000) FROM scattered GROUP BY k % 3", "beyond the range of BIGINT"),
        ] {
            let found = run(&ours, sql).await;
            assert!(found.plan.contains("HybridAggregateExec"), "{}", found.plan);
            let error = found.answer.err().unwrap_or_else(|| panic!("{sql} has an answer"));
            assert!(error.to_string().contains(words) && !is_out_of_memory(&error), "{error}");
            assert_eq!(ours.leftovers().await, None, "{sql}");
        }
    }
}
