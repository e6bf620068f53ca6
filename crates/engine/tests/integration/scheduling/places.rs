//! Queries that may use the emulated device run where the policy says.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use overspill::scheduler::SchedulerConfig;
use overspill::{Choice, DeviceKind, OverspillConfig};
use overspill_schedule::{Decision, Limits, Paper5Settings, PolicyKind, Reason, What, check};

use super::Sessions;
use crate::device::{leftovers, start};
use crate::harness::duckdb::Export;
use crate::harness::fixture::{JOINS, Size, register};
use crate::harness::plan::PlanReport;
use crate::harness::run::Run;

const MIB: usize = 1 << 20;

fn on_emulated_device(gpu_memory_limit: usize) -> OverspillConfig {
    OverspillConfig { device: Choice(Some(DeviceKind::Emulated)), gpu_memory_limit, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy_says_who_uses_the_gpu() {
    let emulated = start(64 * MIB);
    let config = on_emulated_device(64 * MIB);
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
    assert_eq!(leftovers(&emulated), None);
}

/// Each policy runs all kinds of joins of many sessions at once, on the CPU and on a device with little memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_joins_at_once_on_a_small_device_give_their_answers() {
    const QUERIES: usize = 32;
    let emulated = start(16 * MIB);
    let config = on_emulated_device(16 * MIB);
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
    assert_eq!(leftovers(&emulated), None);
}

/// Policies fill the device to its limits, and never beyond.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_limits_of_the_gpu_hold() {
    let emulated = start(64 * MIB);
    let config = on_emulated_device(64 * MIB);
    let size = Size { build: 20_000, probe: 30_000 };
    let sql = "SELECT a_id, b_id FROM a JOIN b ON a_k = b_id";
    let rounds = Paper5Settings { grace: 0.05, ..Paper5Settings::default() };
    let policies = [PolicyKind::FirstCome, PolicyKind::Paper5(rounds)];
    // The limit of joins is reached, then that of queries.
    for ((joins, most_running), policy) in [(3, 5), (8, 3)].into_iter().flat_map(|most| policies.map(|by| (most, by))) {
        let gpu_limits = Limits { joins, ..Limits::PAPER };
        let scheduler =
            SchedulerConfig { policy, gpu_limits, most_running, brief: Duration::ZERO, ..Default::default() };
        let sessions = Sessions::new(scheduler, 512 * MIB);
        // Planned before the first one runs: a debug build plans about as long as such a query takes.
        let plan = async |user: usize| {
            let session = sessions.session(&format!("user {user}"), config.clone());
            register(&session, size, 2).unwrap();
            let plan = session.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            (session, plan)
        };
        let run = async |(session, plan): (SessionContext, Arc<dyn ExecutionPlan>)| {
            let rows = collect(plan, session.task_ctx()).await.unwrap();
            rows.iter().map(|batch| batch.num_rows()).sum::<usize>()
        };
        let plans = futures::future::join_all((0..16).map(plan)).await;
        let rows = futures::future::join_all(plans.into_iter().map(run)).await;
        assert!(rows[0] > 0 && rows.iter().all(|number| *number == rows[0]), "{rows:?}");
        // Nothing happens beside it that would wake the scheduler when a round ends.
        assert_eq!(run(plan(16).await).await, rows[0]);
        let log = sessions.scheduler.log();
        let case = format!("{}, {joins} joins, {most_running} queries", policy.name());
        check(&log, &gpu_limits, most_running).unwrap_or_else(|error| panic!("{case}: {error}"));
        // It was full: with less the log is not right.
        let (less, most) = if joins < most_running {
            (Limits { joins: joins - 1, ..gpu_limits }, most_running)
        } else {
            (gpu_limits, most_running - 1)
        };
        assert!(check(&log, &less, most).is_err(), "{case}: {log:?}");
        sessions.assert_nothing_left().await;
    }
    assert_eq!(leftovers(&emulated), None);
}

/// The plan expects a fifth of the rows after a filter. All pass, and take more GPU memory than there is for queries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_whose_build_side_is_larger_than_predicted_leaves_the_device() {
    let emulated = start(64 * MIB);
    let config = on_emulated_device(64 * MIB);
    let size = Size { build: 20_000, probe: 30_000 };
    let sql = "SELECT count(*), sum(a_id), sum(b_id) FROM (SELECT * FROM a WHERE a_id % 7 <> 9) JOIN b ON a_k = b_id";
    let stock = datafusion::prelude::SessionContext::new();
    register(&stock, size, 2).unwrap();
    let expected = super::text(&stock, sql).await;
    for (memory, moves) in [(500_000, 1), (600_000, 0)] {
        let gpu_limits = Limits { memory, ..Limits::NONE };
        let policy = PolicyKind::FirstCome;
        let scheduler = SchedulerConfig { policy, gpu_limits, brief: Duration::ZERO, ..Default::default() };
        let sessions = Sessions::new(scheduler, 256 * MIB);
        let session = sessions.session("a", config.clone());
        register(&session, size, 2).unwrap();
        let plan = session.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let rows = collect(std::sync::Arc::clone(&plan), session.task_ctx()).await.unwrap();
        assert_eq!(super::shown(&rows), expected);
        let report = PlanReport::of(&plan).device;
        assert_eq!((report.moves, report.joins(), report.failures.len()), (moves, 1 - moves, 0), "{report:?}");
        let log = sessions.scheduler.log();
        let too_large = |what| matches!(what, What::Decided(Decision { reason: Reason::TooLarge, .. }));
        assert_eq!(log.iter().filter(|entry| too_large(entry.what)).count(), moves, "{log:?}");
        check(&log, &gpu_limits, 2).unwrap();
        drop(plan);
        sessions.assert_nothing_left().await;
    }
    assert_eq!(leftovers(&emulated), None);
}

/// Whatever the device is doing when it is lost: all queries end, and the next uses it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_lost_under_load_is_used_again_by_later_queries() {
    let emulated = start(64 * MIB);
    let size = Size { build: 20_000, probe: 30_000 };
    let sql = "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_k = b_id";
    let stock = datafusion::prelude::SessionContext::new();
    register(&stock, size, 2).unwrap();
    let expected = super::text(&stock, sql).await;
    for place in [1, 5, 20, 60] {
        // Another limit is another device, which was not lost within the last minute.
        let config = on_emulated_device(48 * MIB + place);
        let policy = PolicyKind::AllGpu;
        let scheduler = SchedulerConfig { policy, most_running: 8, brief: Duration::ZERO, ..Default::default() };
        let sessions = Sessions::new(scheduler, 512 * MIB);
        let run = async |user: &str| {
            let session = sessions.session(user, config.clone());
            register(&session, size, 2).unwrap();
            let plan = session.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            let rows = collect(std::sync::Arc::clone(&plan), session.task_ctx()).await.unwrap();
            assert_eq!(super::shown(&rows), expected, "lost at call {place}");
            PlanReport::of(&plan).device
        };
        assert_eq!(run("first").await.failures, [""; 0]);
        emulated.configure(&format!("fail=device_lost:{place}"));
        let reports = futures::future::join_all(["a", "b", "c", "d"].map(run)).await;
        assert!(reports.iter().any(|report| !report.failures.is_empty()), "{reports:?}");
        let report = run("last").await;
        assert!(report.probe_rows > 0 && report.failures.is_empty(), "lost at call {place}: {report:?}");
        let log = sessions.scheduler.log();
        let lost = |what| matches!(what, What::Decided(Decision { reason: Reason::GpuLost, .. }));
        assert!(log.iter().any(|entry| lost(entry.what)), "{log:?}");
        check(&log, &Limits::NONE, 8).unwrap();
        sessions.assert_nothing_left().await;
        assert_eq!(leftovers(&emulated), None, "lost at call {place}");
    }
}

/// Joins of all types, with their rows counted.
fn counted_joins() -> Vec<(&'static str, String, bool)> {
    JOINS.iter().map(|(name, sql, flag)| (*name, format!("SELECT count(*) FROM ({sql})"), *flag)).collect()
}
