//! On which rows conjuncts are evaluated.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch};
use arrow::datatypes::DataType;
use datafusion::catalog::memory::MemorySourceConfig;
use datafusion::logical_expr::{ColumnarValue, Operator, Volatility, create_udf};
use datafusion::physical_expr::expressions::{binary, col, lit};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use overspill::AdaptiveFilterExec;

use super::run;
use crate::harness::session::{Engine, Memory, Session, Settings};

/// A session with a table of rows 0 to 19,999, and functions `counted` and `volatile`, which count the rows that they are called on and are
/// true for all. DataFusion plans `counted` behind comparisons, and leaves a filter with `volatile` as it is written.
async fn counting() -> (Session, Arc<AtomicUsize>) {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    let table = "CREATE TABLE t AS SELECT value AS a, value % 100 AS b, value % 7 AS c FROM generate_series(0, 19999)";
    run(&session, table).await.answer.unwrap();
    let rows = Arc::new(AtomicUsize::new(0));
    for (name, volatility) in [("counted", Volatility::Immutable), ("volatile", Volatility::Volatile)] {
        let counter = Arc::clone(&rows);
        let count = move |args: &[ColumnarValue]| {
            let ColumnarValue::Array(values) = &args[0] else { panic!("a constant") };
            counter.fetch_add(values.len(), Ordering::Relaxed);
            Ok(ColumnarValue::Array(Arc::new(BooleanArray::from(vec![true; values.len()])) as ArrayRef))
        };
        let count = create_udf(name, vec![DataType::Int64], DataType::Boolean, volatility, Arc::new(count));
        session.ctx.register_udf(count);
    }
    (session, rows)
}

#[tokio::test]
async fn functions_see_the_rows_that_the_conditions_before_them_pass() {
    let (session, counter) = counting().await;
    for (conditions, counted, rows) in [
        // Most rows pass what is before it, or few.
        ("b < 90 AND c < 6 AND counted(a)", 15_429, 15_429),
        ("b < 2 AND c < 1 AND counted(a)", 58, 58),
        ("b < 2 AND c < 1 AND volatile(a) AND a >= 10000", 58, 29),
        // It does not move behind conditions that are cheaper.
        ("volatile(a) AND b < 2 AND c < 1", 20_000, 58),
    ] {
        counter.store(0, Ordering::Relaxed);
        let answer = run(&session, &format!("SELECT a FROM t WHERE {conditions}")).await;
        assert!(answer.plan.contains("AdaptiveFilterExec"), "{}", answer.plan);
        assert_eq!(answer.answer.unwrap().rows(), rows, "{conditions}");
        assert_eq!(counter.load(Ordering::Relaxed), counted, "{conditions}");
    }
}

const BATCHES: i64 = 400;
const BATCH: i64 = 1024;

/// Runs a filter `a < 10 AND b < 10` over batches whose values are given for each row. Returns on how many rows each conjunct was evaluated, and
/// how often their order changed.
async fn evaluated(values: impl Fn(i64) -> [i64; 2]) -> ([usize; 2], usize) {
    let batch = |number: i64| {
        let rows = number * BATCH..(number + 1) * BATCH;
        let column =
            |side: usize| Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| values(row)[side]))) as _;
        RecordBatch::try_from_iter([("a", column(0)), ("b", column(1))] as [(&str, ArrayRef); 2]).unwrap()
    };
    let batches: Vec<_> = (0..BATCHES).map(batch).collect();
    let schema = batches[0].schema();
    let expected: usize = (0..BATCHES * BATCH).filter(|row| values(*row).iter().all(|value| *value < 10)).count();
    let input = MemorySourceConfig::try_new_exec(&[batches], Arc::clone(&schema), None).unwrap();
    let side = |name: &str| binary(col(name, &schema).unwrap(), Operator::Lt, lit(10i64), &schema).unwrap();
    let predicate = binary(side("a"), Operator::And, side("b"), &schema).unwrap();
    let filter = FilterExec::try_new(predicate, input).unwrap();
    let filter: Arc<dyn ExecutionPlan> = Arc::new(AdaptiveFilterExec::try_new(&filter).unwrap().unwrap());
    let rows = collect(Arc::clone(&filter), SessionContext::new().task_ctx()).await.unwrap();
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), expected);
    let metrics = filter.metrics().unwrap();
    let of = |conjunct: &str| {
        let is_conjuncts = |metric: &datafusion::physical_plan::metrics::Metric| {
            metric.labels().iter().any(|label| label.name() == "conjunct" && label.value() == conjunct)
        };
        metrics.sum(is_conjuncts).unwrap().as_usize()
    };
    ([of("1"), of("2")], metrics.sum_by_name("reorderings").unwrap().as_usize())
}

#[tokio::test]
async fn the_conjunct_that_drops_most_rows_comes_first() {
    let all = (BATCHES * BATCH) as usize;
    // 99 % of the rows pass one conjunct, 1 % the other. They cost the same.
    let (one, other) = (|row: i64| if row % 100 == 7 { 50 } else { row % 10 }, |row: i64| 9 + row % 100);
    let ([first, second], changes) = evaluated(|row| [one(row), other(row)]).await;
    assert_eq!(second, all);
    assert!(first < all / 20, "{first} of {all}");
    assert!(changes > 0);
    let ([first, second], _) = evaluated(|row| [other(row), one(row)]).await;
    assert_eq!(first, all);
    assert!(second < all / 20, "{second} of {all}");
}

#[tokio::test]
async fn the_order_follows_the_data() {
    let all = (BATCHES * BATCH) as usize;
    let half = BATCHES * BATCH / 2;
    let (most, few) = (|row: i64| if row % 100 == 7 { 50 } else { row % 10 }, |row: i64| 9 + row % 100);
    let (evaluated, changes) =
        evaluated(|row| if row < half { [few(row), most(row)] } else { [most(row), few(row)] }).await;
    // Each comes first in one half, and at most 32 batches longer.
    for rows in evaluated {
        assert!(rows > all * 2 / 5 && rows < all * 3 / 5 + all / 20, "{rows} of {all}");
    }
    assert!(changes > 0);
}
