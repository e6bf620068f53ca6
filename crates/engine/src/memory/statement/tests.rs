use arrow::util::pretty::pretty_format_batches;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryLimit, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::SessionConfig;

use super::*;
use crate::{OverspillConfig, OverspillSessionExt};

const MB: usize = 1 << 20;

fn session(pool: impl MemoryPool) -> SessionContext {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(pool)).build_arc().unwrap();
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(SessionConfig::new().with_target_partitions(2))
        .with_runtime_env(runtime)
        .with_overspill(OverspillConfig::default());
    SessionContext::new_with_state(state.build())
}

fn reserved(ctx: &SessionContext) -> usize {
    ctx.runtime_env().memory_pool.reserved()
}

/// Waits until the expected amount is reserved: operators of a failed query release their memory a little later.
async fn assert_reserved(ctx: &SessionContext, expected: usize) {
    for _ in 0..200 {
        if reserved(ctx) == expected {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} bytes are reserved, not {expected}", reserved(ctx));
}

async fn run(ctx: &SessionContext, sql: &str) -> Result<String> {
    let plan = ctx.state().create_logical_plan(sql).await?;
    let rows = execute_logical_plan(ctx, plan).await?.collect().await?;
    Ok(pretty_format_batches(&rows)?.to_string())
}

async fn error(ctx: &SessionContext, sql: &str) -> String {
    run(ctx, sql).await.unwrap_err().strip_backtrace()
}

/// The first value of the first row.
async fn value(ctx: &SessionContext, sql: &str) -> String {
    let shown = run(ctx, sql).await.unwrap();
    shown.lines().nth(3).unwrap().trim_matches(['|', ' ']).to_owned()
}

#[tokio::test]
async fn created_tables_count_until_dropped() {
    for ctx in [session(GreedyMemoryPool::new(16 * MB)), session(HeadroomPool::new(16 * MB))] {
        run(&ctx, "CREATE TABLE t AS SELECT value AS a, value * 2 AS b FROM range(100000)").await.unwrap();
        let held = reserved(&ctx);
        assert!((1_600_000..1_800_000).contains(&held), "{held}");
        assert_eq!(value(&ctx, "SELECT sum(b - a) FROM t").await, "4999950000");
        assert_eq!(value(&ctx, "SELECT count(*) FROM (SELECT b FROM t LIMIT 5)").await, "5");
        assert_eq!(reserved(&ctx), held);
        run(&ctx, "DROP TABLE t").await.unwrap();
        assert_eq!(reserved(&ctx), 0);
    }
}

#[tokio::test]
async fn rows_are_inserted_as_a_whole_or_not_at_all() {
    for ctx in [session(GreedyMemoryPool::new(4 * MB)), session(HeadroomPool::new(4 * MB))] {
        run(&ctx, "CREATE TABLE t (a BIGINT, b BIGINT DEFAULT 7)").await.unwrap();
        assert_eq!(reserved(&ctx), 0);
        run(&ctx, "INSERT INTO t (a) SELECT value FROM range(1000)").await.unwrap();
        assert_eq!(value(&ctx, "SELECT sum(b) FROM t").await, "7000");
        let held = reserved(&ctx);
        assert!(held >= 16_000, "{held}");
        let message = error(&ctx, "INSERT INTO t SELECT value, value + 1 FROM range(1000000)").await;
        assert!(message.contains("Table 't' does not fit within the memory limit of 4MiB"), "{message}");
        assert!(message.contains("--memory-limit"), "{message}");
        assert_reserved(&ctx, held).await;
        assert_eq!(value(&ctx, "SELECT count(*) FROM t").await, "1000");
        run(&ctx, "INSERT INTO t VALUES (1, 2)").await.unwrap();
        assert_eq!(value(&ctx, "SELECT count(*) FROM t").await, "1001");
        run(&ctx, "INSERT INTO t SELECT * FROM t").await.unwrap();
        assert_eq!(value(&ctx, "SELECT count(*) FROM t").await, "2002");
        run(&ctx, "DROP TABLE t").await.unwrap();
        assert_eq!(reserved(&ctx), 0);
    }
}

#[tokio::test]
async fn changed_rows_are_counted_anew() {
    let ctx = session(HeadroomPool::new(16 * MB));
    run(&ctx, "CREATE TABLE t AS SELECT value AS a FROM range(100000)").await.unwrap();
    let held = reserved(&ctx);
    run(&ctx, "DELETE FROM t WHERE a >= 1000").await.unwrap();
    assert!(reserved(&ctx) < held / 10, "{} of {held}", reserved(&ctx));
    run(&ctx, "UPDATE t SET a = a + 1").await.unwrap();
    assert_eq!(value(&ctx, "SELECT sum(a) FROM t").await, "500500");
    assert!(reserved(&ctx) < held / 5, "{} of {held}", reserved(&ctx));
    run(&ctx, "DROP TABLE t").await.unwrap();
    assert_eq!(reserved(&ctx), 0);
}

#[tokio::test]
async fn a_table_that_does_not_fit_leaves_nothing() {
    for ctx in [session(GreedyMemoryPool::new(4 * MB)), session(HeadroomPool::new(4 * MB))] {
        let message = error(&ctx, "CREATE TABLE big AS SELECT value FROM range(10000000)").await;
        for part in ["Table 'big'", "4MiB", "--memory-limit", "datafusion.runtime.memory_limit"] {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
        assert!(!ctx.table_exist("big").unwrap());
        assert_reserved(&ctx, 0).await;
    }
}

#[tokio::test]
async fn replacing_keeps_the_old_table_until_the_new_one_is_complete() {
    let ctx = session(GreedyMemoryPool::new(4 * MB));
    run(&ctx, "CREATE TABLE t AS SELECT 1 AS a").await.unwrap();
    error(&ctx, "CREATE OR REPLACE TABLE t AS SELECT value AS a FROM range(10000000)").await;
    assert_eq!(value(&ctx, "SELECT a FROM t").await, "1");
    run(&ctx, "CREATE OR REPLACE TABLE t AS SELECT a + 1 AS a FROM t").await.unwrap();
    assert_eq!(value(&ctx, "SELECT a FROM t").await, "2");
    run(&ctx, "CREATE OR REPLACE TABLE fresh AS SELECT 3 AS a").await.unwrap();
    assert_eq!(value(&ctx, "SELECT a FROM fresh").await, "3");
}

#[tokio::test]
async fn existing_tables_and_doubtful_columns_are_handled_as_in_datafusion() {
    let ours = session(GreedyMemoryPool::new(64 * MB));
    let stock = SessionContext::new();
    for sql in [
        "CREATE TABLE t (a INT NOT NULL, b VARCHAR, PRIMARY KEY (a))",
        "CREATE TABLE IF NOT EXISTS t AS SELECT 1",
        "CREATE TABLE t AS SELECT 1",
        "CREATE OR REPLACE TABLE IF NOT EXISTS t AS SELECT 1",
        "CREATE TABLE u AS SELECT * FROM (VALUES (1)) x(a) JOIN (VALUES (1)) y(a) ON x.a = y.a",
        "CREATE TABLE missing.u AS SELECT 1",
        "CREATE TEMPORARY TABLE u AS SELECT 1",
        "INSERT INTO t VALUES (1, 'x'), (2, NULL)",
        "INSERT INTO t VALUES (NULL, 'x')",
        "INSERT INTO t (b) VALUES ('x')",
        "SELECT * FROM t ORDER BY a",
        "SELECT b, a FROM t WHERE a > 1",
        "DESCRIBE t",
        "CREATE VIEW v AS SELECT a FROM t",
        "SELECT count(*) FROM v",
    ] {
        let expected = async { Ok(pretty_format_batches(&stock.sql(sql).await?.collect().await?)?.to_string()) };
        match (run(&ours, sql).await, expected.await as Result<String>) {
            (Ok(ours), Ok(stock)) => assert_eq!(ours, stock, "{sql}"),
            (Err(_), Err(_)) => {}
            (ours, stock) => panic!("{sql}\nours: {ours:?}\nstock: {stock:?}"),
        }
    }
}

#[tokio::test]
async fn the_memory_limit_of_our_pool_is_set_in_place() {
    let ctx = session(HeadroomPool::new(4 * MB));
    error(&ctx, "CREATE TABLE t AS SELECT value FROM range(1000000)").await;
    run(&ctx, "SET datafusion.runtime.memory_limit = '64M'").await.unwrap();
    run(&ctx, "CREATE TABLE t AS SELECT value FROM range(1000000)").await.unwrap();
    assert!(reserved(&ctx) >= 8_000_000);
    let pool = Arc::clone(&ctx.runtime_env().memory_pool);
    assert!(pool.is::<HeadroomPool>());
    assert!(matches!(pool.memory_limit(), MemoryLimit::Finite(limit) if limit == 64 * MB));
    assert!(error(&ctx, "SET datafusion.runtime.memory_limit = 'many'").await.contains("many"));
}

#[tokio::test]
async fn the_limit_of_spill_files_keeps_their_directory() {
    let root = tempfile::tempdir().unwrap();
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![root.path().to_path_buf()]));
    let runtime = RuntimeEnvBuilder::new().with_disk_manager_builder(disk).build_arc().unwrap();
    let ctx = SessionContext::new_with_config_rt(SessionConfig::new(), runtime);
    run(&ctx, "SET datafusion.runtime.max_temp_directory_size = '5M'").await.unwrap();
    let disk = Arc::clone(&ctx.runtime_env().disk_manager);
    assert_eq!(disk.max_temp_directory_size(), 5 << 20);
    assert!(disk.temp_dir_paths().iter().all(|path| path.starts_with(root.path())));
}
