//! Inputs and budgets at the edge of what makes sense: an answer, or an error that says what to do.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::DataFusionError;
use datafusion::datasource::MemTable;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{GreedyMemoryPool, UnboundedMemoryPool};
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use tempfile::TempDir;

use crate::harness::fixture::{JOINS, Size, register, settings};
use crate::harness::plan::PlanReport;
use crate::harness::run::{Run, is_broken, is_out_of_memory};
use crate::harness::session::{Engine, Memory, Session, Settings};

/// Tables `a` (build side) and `b`, each with an `id`, a `k` and a long `s`, whose keys are given by row number.
fn tables(ctx: &SessionContext, build: (usize, fn(i64) -> Option<i64>), probe: (usize, fn(i64) -> Option<i64>)) {
    for (name, (rows, key)) in [('a', build), ('b', probe)] {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
        let keys: ArrayRef = Arc::new((0..rows as i64).map(key).collect::<Int64Array>());
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("{row:0100}"))));
        let columns = [(format!("{name}_id"), ids), (format!("{name}_k"), keys), (format!("{name}_s"), texts)];
        let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap();
        let slices: Vec<RecordBatch> =
            (0..rows).step_by(1000).map(|start| batch.slice(start, 1000.min(rows - start))).collect();
        ctx.register_table(name.to_string(), Arc::new(MemTable::try_new(batch.schema(), vec![slices]).unwrap()))
            .unwrap();
    }
}

async fn run(session: &Session, sql: &str) -> Run {
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

/// The sum of the floors of the joins of a query.
async fn floor_of(settings: &Settings, sql: &str, register: impl Fn(&SessionContext)) -> usize {
    let session = Session::open(Engine::Overspill, settings, Memory::Ample).unwrap();
    register(&session.ctx);
    run(&session, sql).await.report.floors.iter().sum()
}

/// Every join type over the same tables gives stock DataFusion's answer, in ample memory and at its floor.
async fn agrees(build: (usize, fn(i64) -> Option<i64>), probe: (usize, fn(i64) -> Option<i64>)) {
    for partitioned in [false, true] {
        let settings = settings(2, partitioned);
        for (name, sql, _) in JOINS {
            let stock = Session::open(Engine::Stock, &settings, Memory::Ample).unwrap();
            tables(&stock.ctx, build, probe);
            let expected = run(&stock, sql).await.answer.unwrap();
            let floor = floor_of(&settings, sql, |ctx| tables(ctx, build, probe)).await;
            for memory in [Memory::Ample, Memory::JoinLimit(floor)] {
                let session = Session::open(Engine::Overspill, &settings, memory).unwrap();
                tables(&session.ctx, build, probe);
                let run = run(&session, sql).await;
                assert_eq!(run.report.hybrid_joins, 1, "{name}: {}", run.plan);
                let answer = run.answer.unwrap_or_else(|error| panic!("{name} in {memory:?}: {error}"));
                assert_eq!(answer.difference(&expected), None, "{name} in {memory:?}");
                assert_eq!(session.leftovers().await, None, "{name} in {memory:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_all_null() {
    // Few on one side: where NULL equals NULL, all of them match.
    agrees((8000, |_| None), (4, |_| None)).await;
    agrees((4, |_| None), (8000, |_| None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_side_all_null() {
    agrees((8000, |_| None), (3000, Some)).await;
    agrees((8000, Some), (3000, |_| None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_for_all_rows() {
    agrees((6000, |_| Some(5)), (3, |_| Some(5))).await;
    agrees((3, |_| Some(5)), (6000, |_| Some(5))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_sides() {
    agrees((0, Some), (3000, Some)).await;
    agrees((8000, Some), (0, Some)).await;
    agrees((0, Some), (0, Some)).await;
}

/// Below the floor a join cannot work. It must say which budget, how large it is, who asked, and what raises it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_below_the_floor() {
    for (name, sql, _) in JOINS {
        for budget in [1, 100, 10_000] {
            let limited = Session::open(Engine::Overspill, &settings(2, false), Memory::JoinLimit(budget)).unwrap();
            register(&limited.ctx, Size::SPILLING, 2).unwrap();
            let error = run(&limited, sql).await.answer.err().unwrap_or_else(|| panic!("{name} in {budget} bytes"));
            explains(&error, &["HybridJoin", "overspill.join_memory_limit"]);
            assert_eq!(limited.leftovers().await, None, "{name} in {budget} bytes");
        }
        for budget in [0, 1, 10_000] {
            let pool = Arc::new(GreedyMemoryPool::new(budget));
            let session = Session::open_over(Engine::Overspill, &settings(2, false), pool, 0).unwrap();
            register(&session.ctx, Size::SPILLING, 2).unwrap();
            let error = run(&session, sql).await.answer.err().unwrap_or_else(|| panic!("{name} in a pool of {budget}"));
            assert!(is_out_of_memory(&error) && !is_broken(&error), "{name} in a pool of {budget}: {error}");
            assert_eq!(session.leftovers().await, None, "{name} in a pool of {budget}");
        }
    }
}

fn explains(error: &DataFusionError, words: &[&str]) {
    let text = error.strip_backtrace();
    assert!(is_out_of_memory(error) && !is_broken(error), "{text}");
    for word in words {
        assert!(text.contains(word), "the error does not name {word}: {text}");
    }
    assert!(text.contains(" B") || text.contains("KB"), "the error names no size: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_setting_0_leaves_the_budget_to_the_pool() {
    let session = Session::open(Engine::Overspill, &settings(2, false), Memory::JoinLimit(0)).unwrap();
    register(&session.ctx, Size::SPILLING, 2).unwrap();
    let run = run(&session, JOINS[0].1).await;
    assert!(run.answer.is_ok() && !run.report.spilled(), "{:?}", run.report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_that_do_not_compare() {
    let session = Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap();
    session.ctx.sql("CREATE TABLE l AS SELECT TRUE AS flag").await.unwrap().collect().await.unwrap();
    session.ctx.sql("CREATE TABLE r AS SELECT DATE '2024-01-01' AS day").await.unwrap().collect().await.unwrap();
    let error = run(&session, "SELECT * FROM l JOIN r ON flag = day").await.answer.err().expect("no such comparison");
    assert!(!is_broken(&error), "{error}");
}

/// 5,000 columns: the budget holds a few hundred of the rows, and a batch in a file costs far more than its values.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_columns() {
    const COLUMNS: usize = 5000;
    const ROWS: usize = 12_000;
    let wide = |ctx: &SessionContext| {
        let ids: ArrayRef = Arc::new(Int32Array::from_iter_values(0..ROWS as i32));
        let mut fields = vec![Field::new("a_k", DataType::Int32, true)];
        fields.extend((1..COLUMNS).map(|column| Field::new(format!("a_{column}"), DataType::Int32, true)));
        let schema = Arc::new(Schema::new(fields));
        // All columns share one buffer here; copies of the rows do not.
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![ids; COLUMNS]).unwrap();
        let slices = (0..ROWS).step_by(500).map(|start| batch.slice(start, 500)).collect();
        ctx.register_table("a", Arc::new(MemTable::try_new(schema, vec![slices]).unwrap())).unwrap();
        let keys: ArrayRef = Arc::new(Int32Array::from_iter_values((0..ROWS as i32).rev().step_by(3)));
        let probe = RecordBatch::try_from_iter([("b_k", keys)]).unwrap();
        ctx.register_table("b", Arc::new(MemTable::try_new(probe.schema(), vec![vec![probe]]).unwrap())).unwrap();
    };
    let settings = Settings { target_partitions: 1, ..settings(1, false) };
    let sql = "SELECT * FROM a JOIN b ON a_k = b_k";
    let ample = Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap();
    wide(&ample.ctx);
    let plan = ample.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let floor = PlanReport::of(&plan).floors[0];
    assert!(floor < ROWS * COLUMNS * 4 / 2, "the rows are more than the floor of {floor} bytes");

    let session = Session::open(Engine::Overspill, &settings, Memory::JoinLimit(floor)).unwrap();
    wide(&session.ctx);
    let plan = session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    let mut stream = execute_stream(Arc::clone(&plan), session.ctx.task_ctx()).unwrap();
    let mut rows = 0;
    while let Some(batch) = stream.next().await {
        let batch = batch.unwrap_or_else(|error| panic!("{error}"));
        for column in [1, COLUMNS / 2, COLUMNS] {
            assert_eq!(batch.column(column), batch.column(0), "column {column} has the values of the key");
        }
        rows += batch.num_rows();
    }
    assert_eq!(rows, ROWS.div_ceil(3));
    let report = PlanReport::of(&plan);
    assert!(report.spilled(), "{report:?}");
    drop((stream, plan));
    assert_eq!(session.leftovers().await, None);
}

/// Both sides have 4,096 rows with the same key, which is 2^24 matches. The join may hold one batch of them at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_matches() {
    let settings = settings(1, false);
    let floor = 2 * (256 << 10);
    for memory in [Memory::Ample, Memory::JoinLimit(floor), Memory::Greedy(8 << 20)] {
        let session = Session::open(Engine::Overspill, &settings, memory).unwrap();
        tables(&session.ctx, (4096, |_| Some(1)), (4096, |_| Some(1)));
        let sql = "SELECT count(*), sum(a_id), max(b_s) FROM a JOIN b ON a_k = b_k";
        let answer = run(&session, sql).await.answer.unwrap_or_else(|error| panic!("{memory:?}: {error}"));
        let count = answer.batches[0].column(0).as_any().downcast_ref::<Int64Array>().unwrap().value(0);
        assert_eq!(count, 1 << 24, "{memory:?}");
        assert!(session.pool.join_peak() < 4 << 20, "{memory:?}: the join held {} bytes", session.pool.join_peak());
        assert_eq!(session.leftovers().await, None, "{memory:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disabled_disk_manager() {
    for (name, sql, _) in JOINS {
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        let pool = Arc::new(UnboundedMemoryPool::default());
        let limit = 768 << 10;
        let settings = settings(2, false);
        let session =
            Session::open_with(Engine::Overspill, &settings, pool, limit, disk, TempDir::new().unwrap()).unwrap();
        register(&session.ctx, Size::SPILLING, 2).unwrap();
        let error = run(&session, sql).await.answer.err().unwrap_or_else(|| panic!("{name} spilled without files"));
        assert!(is_out_of_memory(&error) && !is_broken(&error), "{name}: {error}");
        assert_eq!(session.leftovers().await, None, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_temporary_directory_that_is_too_small() {
    for (name, sql, _) in JOINS {
        let temp = TempDir::new().unwrap();
        let disk = DiskManagerBuilder::default()
            .with_mode(DiskManagerMode::Directories(vec![temp.path().into()]))
            .with_max_temp_directory_size(200_000);
        let pool = Arc::new(UnboundedMemoryPool::default());
        let session = Session::open_with(Engine::Overspill, &settings(2, false), pool, 768 << 10, disk, temp).unwrap();
        register(&session.ctx, Size::SPILLING, 2).unwrap();
        let error = run(&session, sql).await.answer.err().unwrap_or_else(|| panic!("{name} fitted into 200 KB"));
        let text = error.strip_backtrace();
        assert!(!is_broken(&error), "{name}: {text}");
        assert!(text.contains("max_temp_directory_size"), "{name}: the error names no setting: {text}");
        assert_eq!(session.leftovers().await, None, "{name}");
    }
}
