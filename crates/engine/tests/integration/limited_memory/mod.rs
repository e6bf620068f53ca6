//! Sorts and windows in less memory than their rows take: the rows of stock DataFusion in ample memory, in its order.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int64Array, ListArray, RecordBatch, StringViewArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::{Int32Type, Int64Type};
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use overspill::memory::HeadroomPool;
use overspill_join::memory::compact;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use crate::harness::run::{is_broken, is_out_of_memory};
use crate::harness::session::{Engine, Memory, Session, Settings};

const ROWS: i64 = 24_000;

/// What the rows take several times.
const LIMIT: usize = 3 << 20;

/// A number that says which row it is, and columns with nulls of all kinds of types.
fn table() -> MemTable {
    let mut random = StdRng::seed_from_u64(11);
    let mut some = |null: f64| !random.random_bool(null);
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| row * 7919 % ROWS)));
    let keys: ArrayRef = Arc::new((0..ROWS).map(|row| some(0.1).then_some(row * 31 % 97)).collect::<Int64Array>());
    let texts = (0..ROWS)
        .map(|row| some(0.05).then(|| format!("{:05} is the text of a row, and no short one", row * 17 % 9973)));
    let texts: ArrayRef = Arc::new(texts.collect::<StringViewArray>());
    let words: ArrayRef = Arc::new(
        (0..ROWS)
            .map(|row| some(0.1).then(|| ["ash", "oak", "elm"][row as usize % 3]))
            .collect::<DictionaryArray<Int32Type>>(),
    );
    let numbers =
        (0..ROWS).map(|row| some(0.1).then_some(if row % 50 == 0 { f64::NAN } else { (row % 1013) as f64 / 8.0 }));
    let numbers: ArrayRef = Arc::new(numbers.collect::<Float64Array>());
    let flags: ArrayRef = Arc::new((0..ROWS).map(|row| some(0.2).then_some(row % 2 == 0)).collect::<BooleanArray>());
    let lists = (0..ROWS).map(|row| some(0.1).then(|| (0..row % 4).map(move |item| Some(row % 11 + item))));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
    let columns = [("id", ids), ("k", keys), ("s", texts), ("w", words), ("f", numbers), ("b", flags), ("l", lists)];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap();
    let rows = batch.num_rows();
    let mut partitions = vec![vec![]; 2];
    for (number, start) in (0..rows).step_by(1000).enumerate() {
        partitions[number % 2].push(compact(batch.slice(start, 1000.min(rows - start))).unwrap());
    }
    MemTable::try_new(batch.schema(), partitions).unwrap()
}

/// The rows of a query as they came, and how often its nodes spilled.
async fn rows(session: &Session, sql: &str) -> Result<(RecordBatch, usize, String)> {
    session.ctx.register_table("t", Arc::new(table()))?;
    let plan = session.ctx.sql(sql).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), session.ctx.task_ctx()).await?;
    let text = displayable(plan.as_ref()).indent(false).to_string();
    Ok((concat_batches(&plan.schema(), &batches)?, spills(&plan), text))
}

fn spills(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.spill_count()).unwrap_or(0);
    own + plan.children().into_iter().map(spills).sum::<usize>()
}

fn limited(engine: Engine, limit: usize) -> Session {
    let pool: Arc<dyn MemoryPool> = Arc::new(HeadroomPool::new(limit));
    Session::open_over(engine, &Settings::default(), pool, 0).unwrap()
}

/// Runs a query on stock DataFusion in ample memory and on Overspill in `limit` bytes; returns how often the latter
/// spilled.
async fn agrees(sql: &str, node: &str, limit: usize) -> usize {
    let stock = Session::open(Engine::Stock, &Settings::default(), Memory::Ample).unwrap();
    let (expected, _, _) = rows(&stock, sql).await.unwrap();
    let session = limited(Engine::Overspill, limit);
    let (answer, spilled, plan) = rows(&session, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    assert!(plan.contains(node), "{sql}: {plan}");
    assert_eq!(answer.num_rows(), expected.num_rows(), "{sql}");
    for (column, expected) in answer.columns().iter().zip(expected.columns()) {
        assert!(column == expected, "{sql}: {column:?} is not {expected:?}");
    }
    assert_eq!(session.leftovers().await, None, "{sql}");
    spilled
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sorts_spill_and_give_datafusions_rows_in_its_order() {
    for order in [
        "s, id",
        "s DESC NULLS LAST, id DESC",
        "id",
        "id DESC",
        "w, l, f DESC, id",
        "k NULLS FIRST, b DESC, id",
        "reverse(s), id",
        "l DESC, id",
    ] {
        let spilled = agrees(&format!("SELECT * FROM t ORDER BY {order}"), "SpillingSortExec", LIMIT).await;
        assert!(spilled >= 2, "ORDER BY {order} spilled {spilled} times");
    }
    agrees("SELECT s, id FROM t ORDER BY s DESC, id LIMIT 15000", "SpillingSortExec: fetch=15000", LIMIT).await;
    agrees("SELECT * FROM t ORDER BY id LIMIT 3 OFFSET 20000", "SpillingSortExec: fetch=20003", LIMIT).await;
    agrees("SELECT s, max(id) FROM t GROUP BY s ORDER BY s LIMIT 5", "SpillingSortExec: fetch=5", LIMIT).await;
    // A few rows are kept in memory, where a filter can follow them.
    agrees("SELECT * FROM t ORDER BY s, id LIMIT 10", "SortExec: TopK(fetch=10)", LIMIT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_give_datafusions_rows() {
    for window in [
        "row_number() OVER (ORDER BY s, id)",
        "row_number() OVER (ORDER BY s DESC NULLS LAST, id DESC)",
        "rank() OVER (PARTITION BY w ORDER BY s)",
        "dense_rank() OVER (PARTITION BY s ORDER BY k DESC)",
        "lag(s, 3) OVER (PARTITION BY k ORDER BY s DESC, id)",
        "first_value(s) OVER (PARTITION BY k ORDER BY f, id ROWS BETWEEN 5 PRECEDING AND 5 FOLLOWING)",
        "sum(id) OVER (PARTITION BY s ORDER BY id)",
        "sum(id) FILTER (WHERE s > '05') OVER (PARTITION BY w, k ORDER BY s, id)",
        "count(*) OVER (PARTITION BY k ORDER BY s RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
        "count(*) OVER (PARTITION BY k ORDER BY s GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW)",
        "sum(id) OVER (PARTITION BY s)",
        "max(s) OVER (PARTITION BY k, b)",
        "count(*) FILTER (WHERE s > '05') OVER (PARTITION BY l)",
        "ntile(4) OVER (PARTITION BY k ORDER BY id)",
        "percent_rank() OVER (PARTITION BY k ORDER BY s)",
        "last_value(id) OVER (PARTITION BY w, b, k ORDER BY id ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
    ] {
        agrees(&format!("SELECT id, s, {window} AS value FROM t ORDER BY id"), "CountedWindowExec", 2 * LIMIT).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_that_needs_all_rows_says_so() {
    let session = limited(Engine::Overspill, LIMIT);
    let error = rows(&session, "SELECT id, s, sum(id) OVER () FROM t").await.unwrap_err();
    assert!(is_out_of_memory(&error) && !is_broken(&error), "{error}");
    let text = error.to_string();
    assert!(text.contains("A window function keeps all rows of a partition in memory"), "{text}");
    assert!(text.contains("PARTITION BY") && text.contains("memory limit"), "{text}");
    assert_eq!(session.leftovers().await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sorts_without_room_or_files_are_refused() {
    let session = limited(Engine::Overspill, 100_000);
    let error = rows(&session, "SELECT * FROM t ORDER BY id").await.unwrap_err();
    assert!(is_out_of_memory(&error) && !is_broken(&error), "{error}");
    assert!(error.to_string().contains("A sort needs at least"), "{error}");

    let pool: Arc<dyn MemoryPool> = Arc::new(HeadroomPool::new(LIMIT));
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
    let session =
        Session::open_with(Engine::Overspill, &Settings::default(), pool, 0, disk, TempDir::new().unwrap()).unwrap();
    let error = rows(&session, "SELECT * FROM t ORDER BY id").await.unwrap_err();
    assert!(error.to_string().contains("the session has no temporary files"), "{error}");
}

/// When this fails, DataFusion sorts in this memory as well, and `SpillingSortExec` may go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stock_datafusion_still_fails_to_sort_in_this_memory() {
    for memory in [Memory::Greedy(LIMIT), Memory::Fair(LIMIT)] {
        let mut failed = 0;
        // Now and then its streams come one after the other, and each finds room.
        for _ in 0..10 {
            let stock = Session::open(Engine::Stock, &Settings::default(), memory).unwrap();
            stock.ctx.sql("SET datafusion.execution.sort_spill_reservation_bytes = 65536").await.unwrap();
            if let Err(error) = rows(&stock, "SELECT * FROM t ORDER BY s, id").await {
                assert!(is_out_of_memory(&error), "{error}");
                failed += 1;
            }
        }
        assert!(failed > 0, "{memory:?}");
    }
}
