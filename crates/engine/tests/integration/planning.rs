//! Plans depend on the session as it is when they are made.

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use overspill::{DeviceKind, OverspillConfig, OverspillRuntime, OverspillSessionExt};

/// The physical plan of a query.
async fn plan(ctx: &SessionContext, sql: &str) -> String {
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string()
}

async fn set_memory_limit(ctx: &SessionContext, limit: &str) {
    let set = format!("SET datafusion.runtime.memory_limit = '{limit}'");
    ctx.sql(&set).await.unwrap().collect().await.unwrap();
}

#[tokio::test]
async fn rules_see_the_memory_limit_of_the_moment() {
    let config = SessionConfig::new().with_target_partitions(2);
    let state = SessionStateBuilder::new_with_default_features().with_config(config);
    let ctx = SessionContext::new_with_state(state.with_overspill(OverspillConfig::default()).build());
    let create = "CREATE TABLE t AS SELECT value AS k FROM range(200000)";
    ctx.sql(create).await.unwrap().collect().await.unwrap();
    let join = "SELECT a.k FROM t a JOIN t b ON a.k = b.k ORDER BY a.k";
    let is_shared = |plan: &str| plan.contains("mode=CollectLeft");

    let without = plan(&ctx, join).await;
    assert!(!without.contains("SpillingSortExec") && is_shared(&without), "{without}");
    // A quarter of it holds the build side only just not.
    set_memory_limit(&ctx, "4M").await;
    let small = plan(&ctx, join).await;
    assert!(small.contains("SpillingSortExec") && !is_shared(&small), "{small}");
    set_memory_limit(&ctx, "4G").await;
    let large = plan(&ctx, join).await;
    assert!(large.contains("SpillingSortExec") && is_shared(&large), "{large}");
}

#[tokio::test]
async fn sessions_share_a_gpu_by_their_runtime() {
    let config = OverspillConfig { device: DeviceKind::Emulated.into(), ..OverspillConfig::default() };
    let (one, other) = (OverspillRuntime::default(), OverspillRuntime::default());
    let session = |runtime: &OverspillRuntime| {
        // A single partition starts the join when it is executed.
        let options = SessionConfig::new().with_target_partitions(1).with_extension(Arc::new(runtime.clone()));
        let state = SessionStateBuilder::new_with_default_features().with_config(options);
        SessionContext::new_with_state(state.with_overspill(config.clone()).build())
    };
    let sql = "SELECT a.value FROM range(1000) a JOIN range(1000) b ON a.value = b.value";
    let gpus = [&one, &one, &other].map(|runtime| (session(runtime), runtime.gpu(&config).unwrap()));
    for (ctx, gpu) in &gpus {
        let held = Arc::strong_count(gpu);
        let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let task = ctx.task_ctx();
        let running = datafusion::physical_plan::execute_stream(plan, task).unwrap();
        assert!(Arc::strong_count(gpu) > held, "the session of this runtime joins on another GPU");
        drop(running);
    }
    assert!(Arc::ptr_eq(&gpus[0].1, &gpus[1].1) && !Arc::ptr_eq(&gpus[0].1, &gpus[2].1));
    let released = Arc::downgrade(&gpus[0].1);
    drop(gpus);
    one.release();
    assert!(released.upgrade().is_none() && one.gpu(&config).is_ok());
}
