//! Every reservation fails once: a statement that fails says so and leaves nothing, and joins stay right.

use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use overspill::{OverspillConfig, OverspillSessionExt};

use super::run;
use crate::faults::pool::FaultyPool;

const STATEMENTS: [&str; 7] = [
    "CREATE TABLE r AS SELECT (value * 7) % 1009 AS k, value AS p FROM generate_series(1, 3000)",
    "CREATE TABLE s AS SELECT value AS k FROM generate_series(1, 20)",
    "SET overspill.indexes = always",
    "CREATE INDEX i ON r (k)",
    "CREATE INDEX j ON r USING btree (k)",
    "INSERT INTO r VALUES (1, 0), (2, 0)",
    "DROP INDEX j",
];

/// A session whose `refused`th reservation fails.
fn session(refused: usize) -> (Arc<FaultyPool>, SessionContext) {
    let pool = Arc::new(FaultyPool::new(refused));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool) as _).build_arc().unwrap();
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(SessionConfig::new().with_target_partitions(2))
        .with_runtime_env(runtime)
        .with_overspill(OverspillConfig::default())
        .build();
    (pool, SessionContext::new_with_state(state))
}

/// What stays reserved. Tasks of a query that has failed end after its error.
async fn left_reserved(pool: &FaultyPool) -> usize {
    for _ in 0..1000 {
        if pool.reserved() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pool.reserved()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations_of_files() {
    for index in ["CREATE INDEX i ON r (k)", "CREATE INDEX i ON r (k) INCLUDE (p)"] {
        reservations_of(index).await;
    }
}

async fn reservations_of(index: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (_, ctx) = session(usize::MAX);
    let path = folder.path().join("r.parquet");
    let rows = "SELECT (value * 7) % 1009 AS k, value AS p FROM generate_series(1, 3000)";
    run(&ctx, &format!("COPY ({rows}) TO '{}'", path.display())).await.unwrap();
    let mut failed = 0;
    for refused in 1.. {
        let (pool, ctx) = session(refused);
        let statements = [
            format!("CREATE EXTERNAL TABLE r STORED AS PARQUET LOCATION '{}'", path.display()),
            "SET overspill.indexes = always".to_owned(),
            index.to_owned(),
        ];
        for statement in statements {
            if let Err(error) = run(&ctx, &statement).await {
                let text = error.to_string();
                assert!(pool.fired() && text.contains("the pool refuses"), "{refused}, {statement}: {text}");
                failed += 1;
            }
        }
        for query in [
            "SELECT count(*) AS n, sum(r.p) AS p FROM (VALUES (14), (21), (28)) s(k) JOIN r ON s.k = r.k",
            "SELECT count(*) AS n, sum(r.p) AS p FROM r WHERE k IN (14, 21, 28, 35)",
        ] {
            run(&ctx, "SET overspill.indexes = always").await.unwrap();
            let found = run(&ctx, query).await;
            run(&ctx, "SET overspill.indexes = never").await.unwrap();
            match (found, run(&ctx, query).await) {
                (Ok(found), Ok(scanned)) => assert_eq!(found, scanned, "{refused}"),
                (Err(error), _) | (_, Err(error)) => assert!(pool.fired(), "{refused}: {error}"),
            }
        }
        run(&ctx, "DROP INDEX IF EXISTS i").await.unwrap();
        assert_eq!(left_reserved(&pool).await, 0, "{refused}");
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| name == "r.parquet" || name == ".overspill"), "{refused}: {left:?}");
        if !pool.fired() {
            assert!(failed > 1, "only {failed} statements have failed");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations() {
    let mut failed = 0;
    for refused in 1.. {
        let (pool, ctx) = session(refused);
        for statement in STATEMENTS {
            if let Err(error) = run(&ctx, statement).await {
                let text = error.to_string();
                let follows = text.contains("'j' does not exist")
                    || text.contains("No table named")
                    || text.contains("not found");
                assert!(
                    pool.fired() && (follows || text.contains("the pool refuses")),
                    "{refused}, {statement}: {text}"
                );
                failed += 1;
            }
        }
        // Against the same tables, scanned.
        let join = "SELECT count(*) AS n, sum(r.p) AS p FROM s JOIN r ON s.k = r.k";
        let found = run(&ctx, join).await;
        run(&ctx, "SET overspill.indexes = never").await.unwrap();
        match (found, run(&ctx, join).await) {
            (Ok(found), Ok(scanned)) => assert_eq!(found, scanned, "{refused}"),
            (Err(error), _) | (_, Err(error)) => assert!(pool.fired(), "{refused}: {error}"),
        }
        for table in ["r", "s"] {
            run(&ctx, &format!("DROP TABLE IF EXISTS {table}")).await.unwrap();
        }
        assert_eq!(left_reserved(&pool).await, 0, "{refused}");
        if !pool.fired() {
            assert!(failed > 5, "only {failed} statements have failed");
            return;
        }
    }
}
