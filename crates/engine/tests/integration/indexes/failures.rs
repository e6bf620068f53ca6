//! Every reservation fails once: a statement that fails says so and leaves nothing, and joins stay right.

use std::sync::Arc;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations() {
    let mut failed = 0;
    for refused in 1.. {
        let pool = Arc::new(FaultyPool::new(refused));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool) as _).build_arc().unwrap();
        let state = SessionStateBuilder::new_with_default_features()
            .with_config(SessionConfig::new().with_target_partitions(2))
            .with_runtime_env(runtime)
            .with_overspill(OverspillConfig::default())
            .build();
        let ctx = SessionContext::new_with_state(state);
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
        assert_eq!(pool.reserved(), 0, "{refused}");
        if !pool.fired() {
            assert!(failed > 5, "only {failed} statements have failed");
            return;
        }
    }
}
