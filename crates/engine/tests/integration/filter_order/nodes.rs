//! Nodes that planners put together in ways that SQL seldom does.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::compute::concat_batches;
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, binary, col, lit};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions, reset_plan_states};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use overspill::AdaptiveFilterExec;

use super::{plan, run, set};
use crate::filter_order::AS_WRITTEN;
use crate::harness::session::{Engine, Memory, Session, Settings};

/// Columns `a`, `b` and `c`, some of them null.
fn table(rows: i64) -> Arc<dyn ExecutionPlan> {
    let numbers = |factor: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter((0..rows).map(|row| (row % 11 != 3).then_some(factor * row % 1000))))
    };
    let batch = RecordBatch::try_from_iter([("a", numbers(1)), ("b", numbers(7)), ("c", numbers(13))]).unwrap();
    let schema = batch.schema();
    let half = batch.num_rows() / 2;
    MemorySourceConfig::try_new_exec(
        &[vec![batch.slice(0, half), batch.slice(half, batch.num_rows() - half)]],
        schema,
        None,
    )
    .unwrap()
}

fn below(column: &str, most: i64, over: &Arc<dyn ExecutionPlan>) -> Arc<dyn PhysicalExpr> {
    let schema = over.schema();
    binary(col(column, &schema).unwrap(), Operator::Lt, lit(most), &schema).unwrap()
}

fn and(
    left: Arc<dyn PhysicalExpr>,
    right: Arc<dyn PhysicalExpr>,
    over: &Arc<dyn ExecutionPlan>,
) -> Arc<dyn PhysicalExpr> {
    binary(left, Operator::And, right, &over.schema()).unwrap()
}

/// A filter whose output has the third column and the first, and at most 500 rows.
fn planned(over: Arc<dyn ExecutionPlan>) -> FilterExec {
    let predicate = and(below("c", 600, &over), below("b", 500, &over), &over);
    let filter = FilterExecBuilder::new(predicate, over).apply_projection(Some(vec![2, 0])).unwrap();
    filter.with_batch_size(100).with_fetch(Some(500)).build().unwrap()
}

fn adaptive(filter: &FilterExec) -> Arc<dyn ExecutionPlan> {
    Arc::new(AdaptiveFilterExec::try_new(filter).unwrap().unwrap())
}

async fn rows(plan: &Arc<dyn ExecutionPlan>) -> RecordBatch {
    let batches = collect(Arc::clone(plan), SessionContext::new().task_ctx()).await.unwrap();
    concat_batches(&plan.schema(), &batches).unwrap()
}

#[tokio::test]
async fn a_node_is_the_filter_that_was_planned() {
    let stock = planned(table(5000));
    let filter = adaptive(&stock);
    let stock: Arc<dyn ExecutionPlan> = Arc::new(stock);
    let expected = rows(&stock).await;
    assert_eq!(expected.num_rows(), 500);
    assert_eq!(rows(&filter).await, expected, "in the same order");
    assert_eq!(filter.schema(), stock.schema());
    assert_eq!(filter.fetch(), Some(500));
    let statistics = |plan: &Arc<dyn ExecutionPlan>| {
        StatisticsContext::default().compute(plan.as_ref(), &StatisticsArgs::new()).unwrap()
    };
    assert_eq!(statistics(&filter), statistics(&stock));
    // With another limit, and over other rows.
    for (fetch, size) in [(None, 5000), (Some(3), 5000), (Some(0), 50), (Some(7), 0)] {
        let options = || ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        let changed = |plan: &Arc<dyn ExecutionPlan>| {
            plan.with_fetch(fetch).unwrap().replace_children(vec![table(size)], options()).unwrap()
        };
        let (filter, stock) = (changed(&filter), changed(&stock));
        assert!(filter.is::<AdaptiveFilterExec>());
        assert_eq!(rows(&filter).await, rows(&stock).await, "{fetch:?} of {size}");
    }
}

#[tokio::test]
async fn a_node_that_was_reset_runs_again() {
    let mut filter = adaptive(&planned(table(3000)));
    let expected = rows(&filter).await;
    for _ in 0..3 {
        filter = reset_plan_states(filter).unwrap();
        assert!(filter.is::<AdaptiveFilterExec>());
        assert_eq!(filter.metrics().unwrap().output_rows().unwrap_or(0), 0, "metrics of the run before");
        assert_eq!(rows(&filter).await, expected);
        assert_eq!(filter.metrics().unwrap().output_rows(), Some(expected.num_rows()));
    }
}

#[tokio::test]
async fn a_condition_that_changes_while_a_query_runs_is_followed() {
    let input = table(3000);
    let column = col("c", &input.schema()).unwrap();
    let dynamic = Arc::new(DynamicFilterPhysicalExpr::new(vec![column], lit(true)));
    let predicate = and(below("b", 900, &input), below("a", 900, &input), &input);
    let predicate = and(predicate, Arc::clone(&dynamic) as _, &input);
    let filter = adaptive(&FilterExec::try_new(predicate, Arc::clone(&input)).unwrap());
    let all = rows(&filter).await.num_rows();
    dynamic.update(below("c", 100, &input)).unwrap();
    let filter = reset_plan_states(filter).unwrap();
    let few = rows(&filter).await;
    let static_ = and(and(below("b", 900, &input), below("a", 900, &input), &input), below("c", 100, &input), &input);
    let expected: Arc<dyn ExecutionPlan> = Arc::new(FilterExec::try_new(static_, input).unwrap());
    assert_eq!(few, rows(&expected).await);
    assert!(few.num_rows() > 0 && few.num_rows() < all / 5, "{} of {all}", few.num_rows());
}

#[tokio::test]
async fn membership_filters_are_put_below_filters() {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    for table in [
        "CREATE TABLE few AS SELECT value * 700 AS k FROM generate_series(0, 12)",
        "CREATE TABLE many AS SELECT value % 12000 AS k, value AS v, value % 10 AS g FROM generate_series(0, 39999)",
    ] {
        run(&session, table).await.answer.unwrap();
    }
    let sql = "SELECT sum(s), count(*) FROM few JOIN (SELECT k, sum(v) AS s FROM many WHERE v < 30000 AND g < 7 GROUP BY k) AS m \
               ON few.k = m.k";
    let shown = plan(&session, sql).await;
    let filter = shown.find("AdaptiveFilterExec").unwrap_or_else(|| panic!("{shown}"));
    assert!(shown[filter..].contains("MembershipExec"), "{shown}");
    let auto = run(&session, sql).await;
    assert!(auto.report.dropped_rows.iter().sum::<usize>() > 30_000, "{:?}", auto.report.dropped_rows);
    set(&session, AS_WRITTEN).await;
    let written = run(&session, sql).await.answer.unwrap();
    assert_eq!(auto.answer.unwrap().difference(&written), None);
}

#[tokio::test]
async fn explain_analyze_counts_for_each_conjunct() {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    run(&session, "CREATE TABLE t AS SELECT value AS a, value % 7 AS b FROM generate_series(0, 999)")
        .await
        .answer
        .unwrap();
    let shown = session.ctx.sql("EXPLAIN ANALYZE VERBOSE SELECT a FROM t WHERE a < 500 AND b < 3").await.unwrap();
    let shown = shown.to_string().await.unwrap();
    assert!(shown.contains("AdaptiveFilterExec: a@0 < 500 AND b@1 < 3"), "{shown}");
    for conjunct in ["1", "2"] {
        let label = format!("evaluated_rows{{partition=0, conjunct={conjunct}}}=");
        assert!(shown.contains(&label), "{label} in {shown}");
    }
    assert!(shown.contains("selectivity"), "{shown}");
}
