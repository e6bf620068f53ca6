//! Tables that spill, are partitioned again and have hot keys, and the emulated device.

use std::collections::HashSet;

use datafusion::physical_plan::{ExecutionPlan, collect};
use overspill::Strategy;
use std::sync::Arc;

use super::{Value, register, values_of};
use crate::device::STRATEGIES;
use crate::harness::plan::PlanReport;
use crate::harness::session::{Device, Engine, Memory, Session, Settings};
use crate::test_gpu::TestGpu;

/// Keys where every seventh is hot, and every 50th is null if nulls are requested.
fn keys(rows: i64, step: i64, nulls: bool) -> Vec<Value> {
    let key = |row: i64| match row {
        _ if nulls && row % 50 == 3 => None,
        _ if row % 7 == 0 => Some(-1),
        _ => Some(row.wrapping_mul(step) % 60_000 * 1_000_003),
    };
    (0..rows).map(key).collect()
}

/// The memberships of `t` in `u` as they should be.
fn expected(t: &[Value], u: &[Value]) -> Vec<Vec<Value>> {
    let members: HashSet<_> = u.iter().copied().collect();
    let is_in = |key: Value| match key {
        _ if members.is_empty() => Some(0),
        Some(_) if members.contains(&key) => Some(1),
        Some(_) if !members.contains(&None) => Some(0),
        _ => None,
    };
    let mut rows: Vec<_> = t.iter().zip(0..).map(|(key, id)| vec![Some(id), is_in(*key)]).collect();
    rows.sort();
    rows
}

const SQL: &str = "SELECT id, k IN (SELECT k FROM u) AS m FROM t";

/// Runs the query, and returns its rows and the metrics of its plan.
async fn run(settings: &Settings, memory: Memory, t: &[Value], u: &[Value]) -> (Vec<Vec<Value>>, PlanReport) {
    let session = Session::open(Engine::Overspill, settings, memory).unwrap();
    let rows = |keys: &[Value]| keys.iter().zip(0..).map(|(key, id)| vec![Some(id), *key]).collect::<Vec<_>>();
    register(&session.ctx, "t", &["id", "k"], &rows(t));
    register(&session.ctx, "u", &["id", "k"], &rows(u));
    let plan: Arc<dyn ExecutionPlan> = session.ctx.sql(SQL).await.unwrap().create_physical_plan().await.unwrap();
    let batches = collect(Arc::clone(&plan), session.ctx.task_ctx()).await.unwrap();
    (values_of(&batches), PlanReport::of(&plan))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_are_the_same_when_spilled() {
    let (mut deepest, mut passes) = (0, 0);
    // Either side may be the build side: the smaller one is.
    for (t_rows, u_rows) in [(8_000, 24_000), (20_000, 8_000)] {
        for (t_nulls, u_nulls) in [(true, false), (true, true)] {
            let (t, u) = (keys(t_rows, 7, t_nulls), keys(u_rows, 11, u_nulls));
            let expected = expected(&t, &u);
            for (strategy, target_partitions) in
                [(Strategy::NoPartition, 3), (Strategy::Radix, 1), (Strategy::Hybrid, 2)]
            {
                let settings = Settings {
                    strategy: strategy.into(),
                    target_partitions,
                    max_fanout: 2,
                    batch_size: 500,
                    ..Settings::default()
                };
                let case = format!("{strategy}, {t_rows} rows in {u_rows}, nulls {t_nulls} {u_nulls}");
                let (answer, report) = run(&settings, Memory::Ample, &t, &u).await;
                assert!(answer == expected, "{case}");
                assert_eq!((report.hybrid_joins, report.spilled_rows), (1, 0), "{case}");
                let floor = report.floors.iter().copied().max().unwrap();
                let (answer, report) = run(&settings, Memory::JoinLimit(floor), &t, &u).await;
                assert!(answer == expected, "{case}, spilled");
                assert!(report.spilled_rows > 0, "{case}");
                (deepest, passes) = (deepest.max(report.recursion_depth), passes.max(report.chunk_passes));
            }
        }
    }
    assert!(deepest > 1, "no partition was partitioned again");
    assert!(passes > 0, "no partition was joined in passes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_are_the_same_on_a_device() {
    const MEMORY: usize = 20 << 20;
    let emulated = TestGpu::start();
    emulated.configure(&format!("memory={MEMORY}"));
    let mut on_device = 0;
    for (number, strategy) in STRATEGIES.into_iter().enumerate() {
        for (t_rows, u_rows) in [(2_000, 5_000), (5_000, 2_000)] {
            let (t, u) = (keys(t_rows, 7, true), keys(u_rows, 11, number % 2 == 0));
            let settings =
                Settings { strategy: strategy.into(), device: Some(Device::with(MEMORY)), ..Settings::default() };
            for memory in [Memory::Ample, Memory::Greedy(2 << 20)] {
                let (answer, report) = run(&settings, memory, &t, &u).await;
                assert!(answer == expected(&t, &u), "{strategy}, {t_rows} rows in {u_rows}");
                on_device += report.device.probe_rows;
            }
        }
    }
    overspill::OverspillRuntime::of_process().release();
    assert!(on_device > 10_000, "only {on_device} rows were looked up on the device");
}
