//! Filters with aggregates above them on the device, and with every failure of its driver.

use overspill::{Choice, Selection};
use overspill_machine::transfer::TransferMethod;

use super::faults::rows_of_nothing;
use super::{MIB, leftovers, start};
use crate::harness::run::Run;
use crate::harness::session::{Device, Engine, Memory, Session, Settings};
use crate::selection::run_cases;

/// Of all methods those that the device has.
const METHODS: [Option<TransferMethod>; 4] =
    [None, Some(TransferMethod::PinnedCopy), Some(TransferMethod::StagedCopy), Some(TransferMethod::UnifiedPrefetch)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_selections_agree() {
    let emulated = start(64 * MIB);
    let limits = [16 * MIB, 64 * MIB];
    let choices = [Choice::AUTO, Choice(Some(Selection::Branching)), Choice(Some(Selection::Predicated))];
    let report = run_cases(1000..1060, &choices, |seed| {
        let transfer = Choice(METHODS[seed as usize % METHODS.len()]);
        Some(Device { transfer, ..Device::with(limits[seed as usize / 30 % 2]) })
    })
    .await;
    println!("{report:?}");
    assert_eq!((report.failures.as_slice(), report.refusals.as_slice()), (&[] as &[String], &[] as &[String]));
    // What does not fit 64 bits is the CPU's, and so are factors beyond 32 bits.
    assert!(report.gpu_rows > 3 * report.returned_rows && report.returned_rows > 0, "{report:?}");
    assert_eq!(report.gpu_rows + report.returned_rows, report.input_rows, "{report:?}");
    assert!(report.link_bytes > report.gpu_rows * 4, "{report:?}");
    assert_eq!(leftovers(&emulated), None);
}

const SQL: &str = "SELECT sum(a * b), count(*), min(a), max(b) FROM t WHERE a BETWEEN 100 AND 150000 AND b < 50";

async fn open(engine: Engine, device: Option<Device>, memory: Memory) -> Session {
    let settings = Settings { device, batch_size: 8192, ..Settings::default() };
    let session = Session::open(engine, &settings, memory).unwrap();
    let table = "CREATE TABLE t AS SELECT value AS a, value % 100 AS b FROM generate_series(1, 200000)";
    session.ctx.sql(table).await.unwrap().collect().await.unwrap();
    session
}

async fn run(session: &Session) -> Run {
    Run::of(&session.ctx, session.ctx.sql(SQL).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_find_no_memory_are_the_cpus() {
    let emulated = start(64 * MIB);
    let expected = run(&open(Engine::Stock, None, Memory::Ample).await).await.answer.unwrap();
    for (memory, fewest, most) in [
        (Memory::Ample, 200_000, 200_000),
        // Streams that come one after the other find room for all.
        (Memory::Greedy(2 << 20), 0, 200_000),
        (Memory::Greedy(1 << 10), 0, 0),
    ] {
        let session = open(Engine::Overspill, Some(Device::with(64 * MIB)), memory).await;
        let run = run(&session).await;
        let report = run.report.selection;
        assert_eq!(run.answer.unwrap().difference(&expected), None, "{memory:?}: {report:?}");
        assert_eq!(report.gpu_rows + report.returned_rows, 200_000, "{memory:?}: {report:?}");
        assert!((fewest..=most).contains(&report.gpu_rows), "{memory:?}: {report:?}");
        assert_eq!(session.leftovers().await, None, "{memory:?}");
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wide_rows_are_selected_in_parts_of_bounded_bytes() {
    const ROWS: usize = 900_000;
    let emulated = start(64 * MIB);
    let columns: Vec<_> = (0..16).map(|column| format!("value + {column} AS c{column}")).collect();
    let sums: Vec<_> = (0..8).map(|column| format!("sum(c{column}) AS s{column}")).collect();
    let ranges: Vec<_> = (8..16).map(|column| format!("c{column} > {}", 99_990 + column)).collect();
    let settings = Settings {
        target_partitions: 1,
        device: Some(Device::with(64 * MIB)),
        batch_size: 8192,
        ..Settings::default()
    };
    let session = Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap();
    let table = format!("CREATE TABLE t AS SELECT {} FROM generate_series(1, {ROWS})", columns.join(", "));
    session.ctx.sql(&table).await.unwrap().collect().await.unwrap();
    let sql = format!("SELECT {} FROM t WHERE {}", sums.join(", "), ranges.join(" AND "));
    let run = Run::of(&session.ctx, session.ctx.sql(&sql).await).await;
    // From 99,991 on.
    let rows: usize = ROWS - 99_990;
    let sums: Vec<_> = (0..8).map(|more| format!("{} AS s{more}", rows * (99_991 + ROWS) / 2 + more * rows)).collect();
    let expected = format!("SELECT {}", sums.join(", "));
    let expected = Run::of(&session.ctx, session.ctx.sql(&expected).await).await.answer.unwrap();
    let report = run.report.selection;
    assert_eq!(run.answer.unwrap().difference(&expected), None, "{report:?}");
    assert_eq!((report.gpu_rows, report.returned_rows), (ROWS, 0), "{report:?}");
    // All of them take 115 MB in batches, and again in pages.
    assert!(report.peak_bytes > 100 * MIB && report.peak_bytes < 150 * MIB, "{report:?}");
    drop(session);
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_the_answer_is_right() {
    let emulated = start(64 * MIB);
    let expected = run(&open(Engine::Stock, None, Memory::Ample).await).await.answer.unwrap();
    // A device that was lost is another afterwards; so is one with another limit.
    let mut limit = 17 * MIB;
    for method in [None, Some(TransferMethod::PinnedCopy)] {
        for kind in ["allocation", "registration", "copy", "launch", "device_lost"] {
            let mut noticed = 0;
            for place in 1..=6 {
                limit += 1;
                let device = Device { transfer: Choice(method), ..Device::with(limit) };
                let session = open(Engine::Overspill, Some(device), Memory::Ample).await;
                // Opening the device is not what is tested.
                rows_of_nothing(&session).await;
                emulated.configure(&format!("fail={kind}:{place}"));
                let run = run(&session).await;
                emulated.configure(&format!("fail={kind}:0"));
                let report = run.report.selection;
                let case = format!("{kind} {place} failing by {method:?}: {report:?}");
                let answer = run.answer.unwrap_or_else(|error| panic!("{case}: {error}"));
                assert_eq!(answer.difference(&expected), None, "{case}");
                assert_eq!(session.leftovers().await, None, "{case}");
                assert_eq!(report.nodes, 1, "{case}");
                let is_noticed = !report.failures.is_empty() || !report.refusals.is_empty();
                assert!(is_noticed || report.gpu_rows > 0, "{case}");
                noticed += usize::from(is_noticed);
                drop(session);
                let left = leftovers(&emulated);
                if kind == "device_lost" && is_noticed {
                    emulated.configure("reset=1;memory=67108864");
                } else {
                    assert_eq!(left, None, "{case}");
                }
            }
            assert!(noticed > 0, "no {kind} was noticed by {method:?}");
        }
    }
}
