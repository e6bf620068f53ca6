//! Queries that may use the emulated device run where the policy says.

use std::path::Path;
use std::time::Duration;

use datafusion::physical_plan::collect;
use overspill::scheduler::SchedulerConfig;
use overspill::{Choice, DeviceKind, OverspillConfig};
use overspill_schedule::{Limits, PolicyKind, check};

use super::Sessions;
use crate::harness::duckdb::Export;
use crate::harness::fixture::{JOINS, Size, register};
use crate::harness::plan::PlanReport;
use crate::harness::run::Run;
use crate::test_gpu::TestGpu;

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy_says_who_uses_the_gpu() {
    let emulated = TestGpu::start();
    emulated.configure(&format!("memory={}", 64 * MIB));
    let config = OverspillConfig {
        device: Choice(Some(DeviceKind::Emulated)),
        gpu_memory_limit: 64 * MIB,
        ..Default::default()
    };
    let mut answers = vec![];
    for (policy, uses_gpu) in [(PolicyKind::AllCpu, false), (PolicyKind::AllGpu, true), (PolicyKind::FirstCome, true)] {
        let scheduler =
            SchedulerConfig { policy, gpu_limits: Limits::PAPER, brief: Duration::ZERO, ..SchedulerConfig::default() };
        let sessions = Sessions::new(scheduler, 256 * MIB);
        let session = sessions.session("a", config.clone());
        register(&session, Size { build: 20_000, probe: 30_000 }, 2).unwrap();
        let frame = session.sql("SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_k = b_id").await.unwrap();
        let plan = frame.create_physical_plan().await.unwrap();
        let rows = collect(std::sync::Arc::clone(&plan), session.task_ctx()).await.unwrap();
        answers.push(arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string());
        let report = PlanReport::of(&plan).device;
        assert_eq!(report.probe_rows > 0, uses_gpu, "{}: {report:?}", policy.name());
        assert_eq!(report.failures, [""; 0], "{}", policy.name());
        drop(plan);
        check(&sessions.scheduler.log(), &Limits::PAPER, sessions.scheduler.config().most_running).unwrap();
        sessions.assert_nothing_left().await;
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    overspill::OverspillRuntime::of_process().release();
}

/// Each policy runs all kinds of joins of many sessions at once, on the CPU and on a device with little memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_joins_at_once_on_a_small_device_give_their_answers() {
    const QUERIES: usize = 32;
    let emulated = TestGpu::start();
    emulated.configure(&format!("memory={}", 16 * MIB));
    let config = OverspillConfig {
        device: Choice(Some(DeviceKind::Emulated)),
        gpu_memory_limit: 16 * MIB,
        ..Default::default()
    };
    let size = Size { build: 9_000, probe: 4_000 };
    let stock = datafusion::prelude::SessionContext::new();
    register(&stock, size, 2).unwrap();
    let mut expected = vec![];
    for (_, sql, _) in counted_joins() {
        expected.push(super::text(&stock, &sql).await);
    }
    let mut tables = vec![];
    for name in ["a", "b"] {
        tables.push((name, stock.table(name).await.unwrap().collect().await.unwrap()));
    }
    let (export, mut exported) = (Export::new().unwrap(), 0);
    for policy in
        [PolicyKind::Overspill(Default::default()), PolicyKind::Paper5(Default::default()), PolicyKind::AllGpu]
    {
        let gpu_limits = Limits { memory: 16 * MIB as u64, ..Limits::PAPER };
        let scheduler = SchedulerConfig { policy, gpu_limits, brief: Duration::ZERO, ..SchedulerConfig::default() };
        let sessions = Sessions::new(scheduler, 512 * MIB);
        let mut queries = tokio::task::JoinSet::new();
        for number in 0..QUERIES {
            let session = sessions.session(&format!("user {}", number % 5), config.clone());
            register(&session, size, 2).unwrap();
            let joins = counted_joins();
            let (name, sql, _) = joins[number % joins.len()].clone();
            let expected = expected[number % joins.len()].clone();
            queries.spawn(async move {
                let answer = Run::of(&session, session.sql(&sql).await).await.answer.unwrap();
                assert_eq!(super::shown(&answer.batches), expected, "{name}");
                (name, sql, answer)
            });
        }
        while let Some(query) = queries.join_next().await {
            let (name, sql, answer) = query.unwrap();
            // DuckDB knows no join by such a name.
            if !sql.contains(" SEMI ") && !sql.contains(" ANTI ") {
                let again = format!("{name} under {}", policy.name());
                let tables = tables.iter().map(|(name, rows)| ((*name).to_owned(), rows[0].schema_ref(), &rows[..]));
                export.add(exported as u64, &again, &sql, tables, &answer).unwrap();
                exported += 1;
            }
        }
        let kept = if policy == PolicyKind::AllGpu { Limits::NONE } else { gpu_limits };
        check(&sessions.scheduler.log(), &kept, sessions.scheduler.config().most_running).unwrap();
        sessions.assert_nothing_left().await;
    }
    if let Some(python) = std::env::var_os("OVERSPILL_PYTHON") {
        assert_eq!(export.check(Path::new(&python)).unwrap_or_else(|failure| panic!("{failure}")), exported);
    }
    assert!(exported > QUERIES, "{exported} answers for DuckDB");
    overspill::OverspillRuntime::of_process().release();
    assert_eq!(emulated.statistics().held(), [0; 9]);
}

/// Joins of all types, with their rows counted.
fn counted_joins() -> Vec<(&'static str, String, bool)> {
    JOINS.iter().map(|(name, sql, flag)| (*name, format!("SELECT count(*) FROM ({sql})"), *flag)).collect()
}
