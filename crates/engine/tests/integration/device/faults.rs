//! The n-th call of the driver fails, for every kind of call: the CPU goes on, with the right answer.

use overspill::{
    Choice, DeviceKind, GpuLinkCompression, OverspillConfig, OverspillRuntime, PrefixSumProcessor, Strategy,
};

use super::{MIB, STRATEGIES, leftovers, start};
use crate::harness::fixture::{JOINS, Size, register, settings};
use crate::harness::rows::Answer;
use crate::harness::run::Run;
use crate::harness::session::{Device, Engine, Memory, Session, Settings};
use crate::harness::share::share_of;
use crate::test_gpu::TestGpu;

const SIZE: Size = Size { build: 3_000, probe: 4_000 };

const KINDS: [&str; 6] = ["allocation", "registration", "copy", "launch", "synchronisation", "device_lost"];

/// Joins that differ in what is lost if rows are lost or come twice.
const SUBJECTS: [&str; 4] = ["inner", "full", "left semi", "right anti"];

async fn run(session: &Session, sql: &str) -> Run {
    register(&session.ctx, SIZE, 2).unwrap();
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

async fn expected(sql: &str) -> Answer {
    let session = Session::open(Engine::Stock, &settings(2, false), Memory::Ample).unwrap();
    run(&session, sql).await.answer.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_the_answer_is_right() {
    let emulated = start(64 * MIB);
    // A device that was lost is another afterwards; so is one with another limit.
    let mut limit = 17 * MIB;
    let mut failed = 0;
    let cases = STRATEGIES.into_iter().flat_map(|strategy| SUBJECTS.map(|name| (strategy, name)));
    for (number, (strategy, name)) in share_of(cases.enumerate()) {
        let (_, sql, _) = JOINS.into_iter().find(|(other, ..)| *other == name).unwrap();
        let expected = expected(sql).await;
        for kind in KINDS {
            let (mut place, mut fired, mut silent) = (1, 0, 0);
            // Waits are not counted: a few faults in a row without an effect are the end.
            while silent < 3 {
                limit += 1;
                let prefix_sum = Choice(Some(PrefixSumProcessor::ALL[number % 2]));
                let link_compression = Choice((number % 2 == 1).then_some(GpuLinkCompression::Cascaded));
                let device = Some(Device { prefix_sum, link_compression, ..Device::with(limit) });
                let settings = Settings { strategy: strategy.into(), device, ..settings(2, false) };
                let session = Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap();
                // Opening the device is not what is tested.
                rows_of_nothing(&session).await;
                emulated.configure(&format!("fail={kind}:{place}"));
                let case = format!("{name} by {strategy}, {kind} {place} failing");
                let before = calls(&emulated, kind);
                let run = run(&session, sql).await;
                let called = calls(&emulated, kind) - before;
                let report = run.report.device;
                let answer = run.answer.unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_eq!(answer.difference(&expected), None, "{case}: {report:?}");
                assert_eq!(session.leftovers().await, None, "{case}");
                drop(session);
                // A failure goes unnoticed where only something that is nice to have fails.
                let is_noticed = !report.failures.is_empty() || !report.refusals.is_empty();
                let has_fired = is_noticed || called >= place;
                emulated.configure(&format!("fail={kind}:0"));
                let left = leftovers(&emulated);
                if kind == "device_lost" && has_fired {
                    emulated.configure("reset=1;memory=67108864");
                } else {
                    assert_eq!(left, None, "{case}");
                }
                if !has_fired && calls(&emulated, kind) > 0 {
                    break;
                }
                silent = if has_fired { 0 } else { silent + 1 };
                fired += usize::from(has_fired);
                place += (place / 3).max(1);
            }
            assert!(fired > 0, "{name} by {strategy}: no {kind} to fail");
            failed += fired;
        }
    }
    println!("{failed} failures, each with the right answer");
}

/// The device is opened again once no query uses it, and within a minute not a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_device_is_opened_again() {
    // No other test has this limit, so none has lost its device.
    let limit = 61 * MIB;
    let emulated = start(64 * MIB);
    let sql = JOINS[0].1;
    let expected = expected(sql).await;
    let device = Some(Device::with(limit));
    let settings = Settings { strategy: Strategy::GpuNoPartition.into(), device, ..settings(2, false) };
    let session = Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap();
    rows_of_nothing(&session).await;
    register(&session.ctx, SIZE, 2).unwrap();
    let joins = async |case: &str| {
        let run = Run::of(&session.ctx, session.ctx.sql(sql).await).await;
        let answer = run.answer.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(answer.difference(&expected), None, "{case}");
        (run.report.device.joins(), run.report.device.failures)
    };
    assert_eq!(joins("before").await, (1, vec![]));
    emulated.configure("fail=device_lost:3");
    let (_, failures) = joins("the loss").await;
    assert!(failures.iter().any(|reason| reason.contains("is lost")), "{failures:?}");
    let config = OverspillConfig {
        device: Choice(Some(DeviceKind::Emulated)),
        gpu_memory_limit: limit,
        ..OverspillConfig::default()
    };
    let runtime = OverspillRuntime::of_process();
    let held = runtime.gpu(&config).unwrap();
    assert_eq!(joins("again").await, (1, vec![]));
    emulated.configure("fail=device_lost:3");
    let (_, failures) = joins("the second loss").await;
    assert!(failures.iter().any(|reason| reason.contains("is lost")), "{failures:?}");
    for held in [Some(held), None] {
        let (number, failures) = joins("soon after").await;
        assert!(number == 0 && failures.iter().all(|reason| reason.contains("is lost")), "{failures:?}");
        drop(held);
    }
    drop(session);
    emulated.configure("reset=1");
    // A setting that cannot be is no loss.
    let tiny = OverspillConfig { gpu_memory_limit: MIB, ..config };
    let error = runtime.gpu(&tiny).unwrap_err().to_string();
    assert!(error.contains("16777216 bytes of GPU memory (overspill.gpu_memory_limit)"), "{error}");
}

/// Calls of a kind so far, of those that are counted.
fn calls(emulated: &TestGpu, kind: &str) -> u64 {
    let statistics = emulated.statistics();
    match kind {
        "allocation" => statistics.allocations_made,
        "registration" => statistics.registrations_made,
        "copy" => statistics.copies_made,
        "launch" => statistics.launches_made,
        _ => 0,
    }
}

/// A join of no rows, which opens the device and does nothing with it.
pub(super) async fn rows_of_nothing(session: &Session) {
    let sql = "SELECT * FROM (VALUES (1)) a(x) JOIN (VALUES (2)) b(y) ON x = y WHERE x > 5";
    session.ctx.sql(sql).await.unwrap().collect().await.unwrap();
}
