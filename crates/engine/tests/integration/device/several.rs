//! Several devices in one join: the hash table of `gpu_no_partition` lies in the memory of all, and all probe it.

use overspill::{Choice, Strategy};
use overspill_machine::transfer::TransferMethod;

use super::faults::rows_of_nothing;
use super::{MIB, STRATEGIES, leftovers, start};
use crate::differential::case::Tally;
use crate::differential::{run_cases, run_on_devices};
use crate::harness::fixture::{JOINS, Size, register, settings};
use crate::harness::rows::Answer;
use crate::harness::run::Run;
use crate::harness::session::{Device, Engine, Memory, Session, Settings};
use crate::harness::share::share_of;

/// Every table has several pages.
const SIZE: Size = Size { build: 300_000, probe: 40_000 };

/// Keys that lie close together, keys far apart, hashes of keys, and keys that repeat.
const QUERIES: [&str; 4] = [
    "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_id = b_k",
    "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_id * 1000003 = b_id * 3000009",
    "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON concat('key ', a_id) = concat('key ', b_id)",
    "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_id / 2 = b_id / 3",
];

const REPEATED: &str = QUERIES[3];

/// Several streams, each with more rows than a chunk of the smallest batches.
fn on_devices(gpus: usize, memory_limit: usize) -> Settings {
    let device = Some(Device { gpus, ..Device::with(memory_limit) });
    Settings { strategy: Strategy::GpuNoPartition.into(), device, ..settings(3, false) }
}

async fn run(settings: &Settings, size: Size, sql: &str) -> Run {
    let session = Session::open(Engine::Overspill, settings, Memory::Ample).unwrap();
    register(&session.ctx, size, settings.target_partitions).unwrap();
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

async fn expected(size: Size, sql: &str) -> Answer {
    let settings = settings(2, false);
    let session = Session::open(Engine::Stock, &settings, Memory::Ample).unwrap();
    register(&session.ctx, size, 2).unwrap();
    Run::of(&session.ctx, session.ctx.sql(sql).await).await.answer.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn all_of_them_hold_the_table_and_probe_it() {
    let emulated = start(64 * MIB);
    let mut probing = vec![];
    for sql in QUERIES {
        let expected = expected(SIZE, sql).await;
        for (gpus, method) in [(2, None), (3, None), (0, None), (2, Some(TransferMethod::PinnedCopy))] {
            let mut settings = on_devices(gpus, 64 * MIB);
            let device = settings.device.as_mut().unwrap();
            (device.transfer, device.aggregates) = (Choice(method), gpus == 2);
            let run = run(&settings, SIZE, sql).await;
            let report = run.report.device;
            let case = format!("{sql} on {gpus} devices by {method:?}: {report:?}");
            assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
            assert_eq!((report.no_partition_joins, report.failures.len(), report.returned_rows), (1, 0, 0), "{case}");
            assert_eq!((report.build_rows > 0, report.probe_rows), (true, SIZE.probe), "{case}");
            // Repeated keys are grouped by one of them, and only that is noted.
            let grouped = "gpu_no_partition: its build by all GPUs: keys that repeat are grouped, so that GPU 0 builds";
            let told: &[&str] = if sql == REPEATED { &[grouped] } else { &[] };
            assert_eq!(
                (report.notes, report.refusals),
                (told.iter().map(|told| told.to_string()).collect(), vec![]),
                "{case}"
            );
            probing.push((report.gpus, if gpus == 0 { 3 } else { gpus }));
        }
    }
    assert_eq!(leftovers(&emulated), None);
    // How many streams have a chunk at the same time is up to the scheduler; there are never more than devices.
    assert!(probing.iter().all(|(probed, gpus)| (1..=*gpus).contains(probed)), "{probing:?}");
    assert!(probing.iter().filter(|(probed, gpus)| probed == gpus).count() > 3, "{probing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_table_that_one_device_has_no_room_for_lies_in_all_of_them() {
    let emulated = start(16 * MIB);
    let sql = QUERIES[1];
    // 16 MiB of slots: a half of one device, all halves of two, and more than those.
    let large = Size { build: 500_000, probe: 20_000 };
    let expected_large = expected(large, sql).await;
    for (gpus, spilled) in [(1, 8), (2, 0), (3, 0)] {
        let run = run(&on_devices(gpus, 16 * MIB), large, sql).await;
        let report = run.report.device;
        let case = format!("{gpus} devices: {report:?}");
        assert_eq!(run.answer.unwrap().difference(&expected_large), None, "{case}");
        assert_eq!((report.no_partition_joins, report.failures.len(), report.returned_rows), (1, 0, 0), "{case}");
        assert_eq!((report.state_bytes, report.spilled_bytes), (16 * MIB, spilled * MIB), "{case}");
    }
    let larger = Size { build: 600_000, probe: 20_000 };
    let expected = expected(larger, sql).await;
    let spilling = run(&on_devices(2, 16 * MIB), larger, sql).await;
    let report = spilling.report.device;
    assert_eq!(spilling.answer.unwrap().difference(&expected), None, "{report:?}");
    assert_eq!((report.state_bytes, report.spilled_bytes), (32 * MIB, 16 * MIB), "{report:?}");
    // Such a table is filled by one of them, unless the links to the CPU have atomics.
    let told = "gpu_no_partition: its build by all GPUs: the links to CPU memory have no system-wide atomics, so that GPU 0 builds";
    assert_eq!((report.notes.as_slice(), report.refusals.len()), (&[told.to_owned()][..], 0), "{report:?}");
    emulated.configure("coherent=1");
    overspill::OverspillRuntime::of_process().release();
    let report = run(&on_devices(2, 16 * MIB), larger, sql).await.report.device;
    assert_eq!((report.notes.len(), report.refusals.len(), report.spilled_bytes), (0, 0, 16 * MIB), "{report:?}");
    // Without CPU pages the table must fit the devices.
    emulated.configure("coherent=0;host_pages=0");
    overspill::OverspillRuntime::of_process().release();
    for (size, joins) in [(large, 1), (larger, 0)] {
        let run = run(&on_devices(2, 16 * MIB), size, sql).await;
        let report = run.report.device;
        let answer = if size.build == large.build { &expected_large } else { &expected };
        assert_eq!(run.answer.unwrap().difference(answer), None, "{report:?}");
        assert_eq!((report.no_partition_joins, report.failures.len()), (joins, 0), "{report:?}");
        let is_told = |reason: &String| reason.contains("of the halves of the GPUs' memory that may stay with joins");
        assert_eq!(report.refusals.iter().any(is_told), joins == 0, "{report:?}");
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_links_lack_is_told_and_the_answer_is_right() {
    let emulated = start(64 * MIB);
    let sql = QUERIES[1];
    let expected = expected(SIZE, sql).await;
    let alone = "gpu_no_partition: several GPUs: ";
    for (missing, reason, gpus) in [
        (
            "peer_access=0",
            "GPU 0 does not reach the memory of GPU 1: their link has no peer access, so that GPU 0 joins alone",
            1,
        ),
        (
            "granularity=0",
            "GPU 0 has no virtual memory management, by which a hash table lies in the memory of several GPUs, so that GPU 0 joins alone",
            1,
        ),
        ("peer_atomics=0", "the links between the GPUs have no native atomics, so that GPU 0 builds", 2),
    ] {
        emulated.configure("peer_access=1;peer_atomics=1;granularity=2097152");
        emulated.configure(missing);
        overspill::OverspillRuntime::of_process().release();
        let run = run(&on_devices(2, 64 * MIB), SIZE, sql).await;
        let report = run.report.device;
        let case = format!("{missing}: {report:?}");
        assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
        assert_eq!((report.no_partition_joins, report.failures.len(), report.returned_rows), (1, 0, 0), "{case}");
        let prefix = if gpus == 1 { alone } else { "gpu_no_partition: its build by all GPUs: " };
        assert_eq!((report.notes, report.refusals), (vec![format!("{prefix}{reason}")], vec![]), "{case}");
        assert!((1..=gpus).contains(&report.gpus), "{case}");
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_devices_than_there_are_are_an_error() {
    let emulated = start(64 * MIB);
    let error = run(&on_devices(4, 64 * MIB), SIZE, QUERIES[0]).await.answer.err().unwrap().to_string();
    for part in ["overspill.gpus = 4, and the machine has 3", "SET overspill.device = cpu"] {
        assert!(error.contains(part), "{error}");
    }
    // The least memory is that of each.
    let tiny = run(&on_devices(2, MIB), SIZE, QUERIES[0]).await.answer.err().unwrap().to_string();
    assert!(tiny.contains("16777216 bytes of GPU memory (overspill.gpu_memory_limit)"), "{tiny}");
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_strategies_use_the_first_device() {
    let emulated = start(64 * MIB);
    let (_, sql, _) = JOINS[0];
    let expected = expected(Size::SPILLING, sql).await;
    for strategy in STRATEGIES.into_iter().filter(|strategy| *strategy != Strategy::GpuNoPartition) {
        let settings = Settings { strategy: strategy.into(), ..on_devices(3, 64 * MIB) };
        let run = run(&settings, Size::SPILLING, sql).await;
        let report = run.report.device;
        assert_eq!(run.answer.unwrap().difference(&expected), None, "{strategy}: {report:?}");
        assert_eq!((report.joins(), report.gpus, report.failures.len()), (1, 1, 0), "{strategy}: {report:?}");
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_on_any_of_them_the_answer_is_right() {
    let emulated = start(64 * MIB);
    let small = Size { build: 3_000, probe: 4_000 };
    let of = |name| JOINS.into_iter().find(|(other, ..)| *other == name).unwrap().1;
    // The table of small joins is one device's alone, that of the last lies in both; of that not every call
    // fails.
    let subjects =
        [(of("inner"), small, 3), (of("full"), small, 3), (QUERIES[1], Size { build: 100_000, probe: 4_000 }, 1)];
    let kinds = ["allocation", "registration", "copy", "launch", "synchronisation", "device_lost"];
    // Devices that were lost are others afterwards; so are those with another limit.
    let mut limit = 17 * MIB;
    for (sql, size, fineness) in subjects {
        let expected = expected(size, sql).await;
        for (device, kind) in share_of([0, 1].into_iter().flat_map(|device| kinds.map(|kind| (device, kind)))) {
            let (mut place, mut fired, mut silent) = (1, 0, 0);
            while silent < 2 {
                limit += 1;
                let settings = on_devices(2, limit);
                let session = Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap();
                register(&session.ctx, size, 2).unwrap();
                rows_of_nothing(&session).await;
                emulated.configure(&format!("fail={kind}:{place}@{device}"));
                let run = Run::of(&session.ctx, session.ctx.sql(sql).await).await;
                emulated.configure(&format!("fail={kind}:0"));
                let report = run.report.device;
                let case = format!("{sql}: {kind} {place} failing on device {device}: {report:?}");
                assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
                assert_eq!(session.leftovers().await, None, "{case}");
                drop(session);
                let has_fired = report.refusals.len() + report.failures.len() > 0;
                // A context gives back what a lost device had, unless cudarc leaves it open.
                let left = leftovers(&emulated);
                if kind == "device_lost" && left.is_some() {
                    emulated.configure("reset=1");
                } else {
                    assert_eq!(left, None, "{case}");
                }
                silent = if has_fired { 0 } else { silent + 1 };
                fired += usize::from(has_fired);
                place += (place / fineness).max(1);
            }
            assert!(fired > 0 || kind == "registration", "{sql}: no {kind} to fail on device {device}");
        }
    }
}

/// Joins after the loss of a device, by the devices that are left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_device_is_left_out_afterwards() {
    let emulated = start(64 * MIB);
    let sql = QUERIES[1];
    let expected = expected(SIZE, sql).await;
    for (lost, place) in [(1, 3), (1, 12), (2, 3), (0, 3)] {
        let settings = on_devices(3, 64 * MIB);
        let session = Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap();
        register(&session.ctx, SIZE, settings.target_partitions).unwrap();
        rows_of_nothing(&session).await;
        emulated.configure(&format!("fail=device_lost:{place}@{lost}"));
        let first = Run::of(&session.ctx, session.ctx.sql(sql).await).await;
        let second = Run::of(&session.ctx, session.ctx.sql(sql).await).await;
        let reports = [first.report.device, second.report.device];
        let case = format!("call {place} of device {lost}: {reports:?}");
        for answer in [first.answer, second.answer] {
            assert_eq!(answer.unwrap().difference(&expected), None, "{case}");
        }
        let is_told = |reason: &String| reason.contains(&format!("GPU {lost} is lost"));
        assert!(reports[0].failures.iter().any(is_told), "{case}");
        let [_, report] = &reports;
        assert_eq!((report.no_partition_joins, report.failures.len()), (1, 0), "{case}");
        assert_eq!((report.probe_rows, report.returned_rows), (SIZE.probe, 0), "{case}");
        // With the first device all are opened again.
        assert!((1..=if lost == 0 { 3 } else { 2 }).contains(&report.gpus), "{case}");
        drop(session);
        if leftovers(&emulated).is_some() {
            emulated.configure("reset=1");
        }
    }
}

#[test]
fn random_queries_agree() {
    let mut all = Tally::default();
    for (number, (gpus, limit)) in [(2, 16 * MIB), (3, 16 * MIB), (2, 200 * MIB)].into_iter().enumerate() {
        let emulated = start(limit);
        let run = |case| run_on_devices((1000 * number) as u64 + case, gpus, limit);
        let tally = run_cases(15, run);
        assert_eq!(leftovers(&emulated), None, "{gpus} devices of {limit} bytes");
        all.add(tally);
    }
    println!(
        "{} rows on devices, {} left to the CPU, refusals: {:#?}",
        all.device_rows, all.returned_rows, all.refusals
    );
    assert_eq!(all.failures, Vec::<String>::new(), "nothing was made to fail");
    // What the limit of each allows, its driver gives.
    assert_eq!(all.refusals.iter().find(|reason| reason.contains("other programs use it")), None);
    assert!(all.device_rows > 10_000, "only {} rows", all.device_rows);
}
