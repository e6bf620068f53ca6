//! Nodes that planners put together in ways that SQL seldom does.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampSecondArray};
use arrow::compute::concat_batches;
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::{AggregateUDF, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateExprBuilder;
use datafusion::physical_expr::expressions::{binary, col, lit};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions, reset_plan_states};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use overspill::FilterAggregateExec;

use crate::harness::run::Run;
use crate::harness::session::{Engine, Memory, Session, Settings};

/// Columns `a` and `b` and a timestamp `t` with a time zone, some of them null.
fn table(rows: i64) -> Arc<dyn ExecutionPlan> {
    let numbers = |value: fn(i64) -> i64| (0..rows).map(move |row| (row % 11 != 3).then(|| value(row)));
    let columns: [(&str, ArrayRef); 3] = [
        ("a", Arc::new(Int64Array::from_iter(numbers(|row| row)))),
        ("b", Arc::new(Int64Array::from_iter(numbers(|row| 7 * row % 1000)))),
        ("t", Arc::new(TimestampSecondArray::from_iter(numbers(|row| row * 3600)).with_timezone("+02:00"))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let schema = batch.schema();
    MemorySourceConfig::try_new_exec(&[vec![batch.slice(0, batch.num_rows() / 2), batch]], schema, None).unwrap()
}

/// Aggregates of `x`, `y` and `t` over a projection to `y`, `t` and `x`, which are `b`, `t` and `a`, over a filter of `b`,
/// which puts its columns out in another order.
fn planned(mode: AggregateMode, table: Arc<dyn ExecutionPlan>) -> AggregateExec {
    let schema = table.schema();
    let predicate = binary(col("b", &schema).unwrap(), Operator::Lt, lit(600i64), &schema).unwrap();
    let filter = FilterExec::try_new(predicate, table).unwrap();
    let filter = datafusion::physical_plan::filter::FilterExecBuilder::from(&filter)
        .apply_projection(Some(vec![2, 0, 1]))
        .unwrap()
        .build()
        .unwrap();
    let columns = [("b", "y"), ("t", "t"), ("a", "x")]
        .map(|(of, name)| ProjectionExpr { expr: col(of, &filter.schema()).unwrap(), alias: name.to_owned() });
    let projection = Arc::new(ProjectionExec::try_new(columns, Arc::new(filter)).unwrap());
    let schema = projection.schema();
    let aggregate = |function: Arc<AggregateUDF>, argument: Arc<dyn PhysicalExpr>, alias: &str| {
        let built =
            AggregateExprBuilder::new(function, vec![argument]).schema(Arc::clone(&schema)).alias(alias).build();
        Arc::new(built.unwrap())
    };
    let column = |name| col(name, &schema).unwrap();
    let aggregates = vec![
        aggregate(count_udaf(), lit(1i64), "n"),
        aggregate(count_udaf(), column("x"), "c"),
        aggregate(min_udaf(), column("y"), "least"),
        aggregate(min_udaf(), column("t"), "first"),
        aggregate(max_udaf(), column("x"), "last"),
    ];
    let filters = vec![None; aggregates.len()];
    AggregateExec::try_new(mode, PhysicalGroupBy::default(), aggregates, filters, projection, schema).unwrap()
}

async fn rows(plan: &Arc<dyn ExecutionPlan>) -> RecordBatch {
    let batches = collect(Arc::clone(plan), SessionContext::new().task_ctx()).await.unwrap();
    concat_batches(&plan.schema(), &batches).unwrap()
}

#[tokio::test]
async fn a_projection_between_filter_and_aggregate_is_looked_through() {
    for mode in [AggregateMode::Single, AggregateMode::Partial] {
        let stock = planned(mode, table(3000));
        let fused: Arc<dyn ExecutionPlan> = Arc::new(FilterAggregateExec::try_new(&stock).unwrap());
        let expected = rows(&(Arc::new(stock) as _)).await;
        assert_eq!(rows(&fused).await, expected, "{mode:?}");
        // Of other rows, and of none.
        for size in [500, 0] {
            let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            let other = Arc::clone(&fused).replace_children(vec![table(size)], options).unwrap();
            assert!(other.is::<FilterAggregateExec>(), "{other:?}");
            let expected = rows(&(Arc::new(planned(mode, table(size))) as _)).await;
            assert_eq!(rows(&other).await, expected, "{mode:?}, {size} rows");
            let partitions = |plan: &Arc<dyn ExecutionPlan>| plan.properties().output_partitioning().partition_count();
            assert_eq!(partitions(&other), partitions(&fused));
        }
    }
}

#[tokio::test]
async fn a_node_that_was_reset_runs_again() {
    let fused = FilterAggregateExec::try_new(&planned(AggregateMode::Single, table(3000))).unwrap();
    let mut plan: Arc<dyn ExecutionPlan> = Arc::new(fused);
    let expected = rows(&plan).await;
    for _ in 0..3 {
        plan = reset_plan_states(plan).unwrap();
        assert!(plan.is::<FilterAggregateExec>(), "{plan:?}");
        let metrics = plan.metrics().unwrap();
        assert_eq!(metrics.output_rows().unwrap_or(0), 0, "metrics of the run before");
        assert_eq!(rows(&plan).await, expected);
        assert_eq!(plan.metrics().unwrap().output_rows(), Some(1));
    }
}

/// Runs a query, which fuses so many filters, on both engines.
async fn agrees(table: &str, sql: &str, nodes: usize) {
    let mut runs = vec![];
    for engine in [Engine::Stock, Engine::Overspill] {
        let session = Session::open(engine, &Settings::default(), Memory::Ample).unwrap();
        session.ctx.sql(table).await.unwrap().collect().await.unwrap();
        runs.push(Run::of(&session.ctx, session.ctx.sql(sql).await).await);
    }
    let expected = runs[0].answer.as_ref().unwrap();
    let answer = runs[1].answer.as_ref().unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert_eq!(answer.difference(expected), None, "{sql}");
    assert_eq!(runs[1].report.selection.nodes, nodes, "{sql}: {}", runs[1].plan);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timestamps_of_time_zones_are_compared_and_found() {
    let table = "CREATE TABLE t AS SELECT value AS a, arrow_cast(value * 3600, 'Timestamp(Second, Some(\"Europe/Berlin\"))') \
                 AS t, arrow_cast(value * 3600000, 'Timestamp(Millisecond, Some(\"+05:30\"))') AS u FROM generate_series(1, 20000)";
    // The end of summer time is between.
    for condition in [
        "t < arrow_cast('1970-09-27T02:30:00Z', 'Timestamp(Second, Some(\"Europe/Berlin\"))')",
        "t BETWEEN arrow_cast('1971-02-01T00:00:00Z', 'Timestamp(Second, Some(\"Europe/Berlin\"))') \
         AND arrow_cast('1971-03-01T00:00:00Z', 'Timestamp(Second, Some(\"Europe/Berlin\"))')",
        "u >= arrow_cast('1971-02-01T00:00:00+05:30', 'Timestamp(Millisecond, Some(\"+05:30\"))') AND a < 15000",
        "t = arrow_cast('1971-02-01T00:00:00Z', 'Timestamp(Second, Some(\"Europe/Berlin\"))')",
    ] {
        let sql = format!("SELECT min(t), max(t), min(u), max(u), count(t), sum(a) FROM t WHERE {condition}");
        agrees(table, &sql, 1).await;
    }
    // Of another zone it is another type, which DataFusion casts.
    let sql = "SELECT max(t), sum(a) FROM t WHERE t < u AND a < 100";
    agrees(table, sql, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recursive_queries_run_it_again_and_again() {
    let table = "CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 5000)";
    let sql = "WITH RECURSIVE r AS (SELECT 1 AS n, CAST(0 AS BIGINT) AS s UNION ALL \
               SELECT r.n + 1, r.s + q.s FROM r CROSS JOIN (SELECT sum(a) AS s FROM t WHERE a < 500) q WHERE r.n < 20) \
               SELECT count(*), max(n), max(s) FROM r";
    agrees(table, sql, 1).await;
}
