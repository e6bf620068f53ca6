//! Aggregates without groups over joins: kernels aggregate pairs themselves.

use std::sync::Arc;

use datafusion::arrow::array::AsArray;
use datafusion::arrow::compute::sum;
use datafusion::arrow::datatypes::Int64Type;
use datafusion::physical_plan::common::collect;
use overspill::{Choice, PrefixSumProcessor, Strategy};
use overspill_machine::transfer::TransferMethod;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::faults::rows_of_nothing;
use super::{MIB, STRATEGIES, leftovers, start};
use crate::harness::fixture::settings;
use crate::harness::plan::DeviceReport;
use crate::harness::rows::Answer;
use crate::harness::run::Run;
use crate::harness::session::{Device, Engine, Memory, Session, Settings};
use crate::harness::share::share_of;

/// Columns of both tables, by the expressions that give them.
const COLUMNS: [(&str, &str, usize); 16] = [
    ("i8", "CAST(value * 7919 % 251 - 125 AS TINYINT)", 1),
    ("i16", "CAST(value * 7919 % 65521 - 32768 AS SMALLINT)", 2),
    ("i32", "CAST(value * 104729 % 4000000007 - 2000000003 AS INT)", 4),
    ("i64", "value * 982451653 % 9007199254740881 - 4503599627370440", 8),
    ("u8", "CAST(value * 31 % 256 AS TINYINT UNSIGNED)", 1),
    ("u16", "CAST(value * 31 % 65536 AS SMALLINT UNSIGNED)", 2),
    ("u32", "CAST(value * 104729 % 4294967291 AS INT UNSIGNED)", 4),
    ("u64", "CAST('18446744073709551615' AS BIGINT UNSIGNED) - CAST(value AS BIGINT UNSIGNED)", 8),
    ("d", "CAST(CAST(value * 37 % 20000 AS INT) AS DATE)", 4),
    ("t", "CAST(value * 4003 - 77777777 AS TIMESTAMP)", 8),
    ("z", "arrow_cast(value * 4003 - 77777777, 'Timestamp(Millisecond, Some(\"+02:00\"))')", 8),
    ("m", "arrow_cast(CAST(value * 11 % 86400 AS INT), 'Time32(Second)')", 4),
    ("s", "arrow_cast(value * 1000003 % 86400000000000, 'Time64(Nanosecond)')", 8),
    ("l", "arrow_cast(value * 86400000, 'Date64')", 8),
    ("y", "arrow_cast(value * 1001 - 5000000, 'Duration(Microsecond)')", 8),
    ("n", "CASE WHEN value % 89 = 3 THEN NULL ELSE value END", 8),
];

/// Two tables with these numbers of rows and of distinct keys.
async fn open(
    engine: Engine,
    settings: &Settings,
    [rows_a, rows_b]: [usize; 2],
    keys: [usize; 2],
    null_keys: bool,
) -> Session {
    let session = Session::open(engine, settings, Memory::Ample).unwrap();
    let columns = COLUMNS.map(|(name, expression, _)| format!("{expression} AS {name}")).join(", ");
    for (table, rows, keys) in [("a", rows_a, keys[0]), ("b", rows_b, keys[1])] {
        let key = match null_keys {
            true => format!("CASE WHEN value % 101 = 7 THEN NULL ELSE value * 65537 % {keys} END"),
            false => format!("value * 65537 % {keys}"),
        };
        let table = format!("CREATE TABLE {table} AS SELECT {key} AS k, {columns} FROM generate_series(1, {rows})");
        session.ctx.sql(&table).await.unwrap().collect().await.unwrap();
    }
    session
}

async fn run(session: &Session, sql: &str) -> Run {
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

/// Aggregates of either table whose columns fit 8 bytes a row of each, or not, if `is_narrow` is false.
fn random_query(random: &mut StdRng, is_narrow: bool) -> String {
    let mut left = if is_narrow { [8usize, 8] } else { [usize::MAX; 2] };
    let mut chosen: Vec<(usize, &str)> = Vec::new();
    let aggregates = (0..random.random_range(1..=if is_narrow { 4 } else { 6 })).map(|_| {
        let side = random.random_range(0..2);
        let Some((name, _, width)) = COLUMNS.choose(random).copied() else { return "count(*)".to_owned() };
        // Nulls are not packed.
        let is_usable = !is_narrow || name != "n";
        let is_known = chosen.contains(&(side, name));
        if !is_usable || !is_known && width > left[side] {
            return "count(*)".to_owned();
        }
        if !is_known {
            left[side] = left[side].saturating_sub(width);
            chosen.push((side, name));
        }
        let functions: &[&str] = if matches!(name, "d" | "t" | "z" | "m" | "s" | "l" | "y") {
            &["min", "max", "count"]
        } else {
            &["sum", "min", "max", "count"]
        };
        format!("{}({}.{name})", functions.choose(random).unwrap(), ["a", "b"][side])
    });
    let aggregates: Vec<_> = aggregates.enumerate().map(|(number, sql)| format!("{sql} AS c{number}")).collect();
    format!("SELECT {} FROM a JOIN b ON a.k = b.k", aggregates.join(", "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_aggregates_agree() {
    const CASES: u64 = 60;
    const METHODS: [TransferMethod; 3] =
        [TransferMethod::PageableCopy, TransferMethod::PinnedCopy, TransferMethod::UnifiedPrefetch];
    let limits = [16 * MIB, 64 * MIB];
    let emulated = start(64 * MIB);
    let (mut aggregated, mut others, mut fused, mut overflowed) = (0, 0, 0, 0);
    for case in 0..CASES {
        let random = &mut StdRng::seed_from_u64(case);
        let is_narrow = random.random_bool(0.7);
        let null_keys = random.random_bool(0.15);
        let rows = [0, 1, 900, 5_000, 20_000];
        let rows = [*rows.choose(random).unwrap(), *rows[2..].choose(random).unwrap()];
        // Unique keys, some that repeat, and hot ones.
        let keys = [1, 2].map(|_| *[64, 3_001, 1 << 20].choose(random).unwrap());
        let sql = random_query(random, is_narrow);
        let transfer = Choice(random.random_bool(0.3).then(|| *METHODS.choose(random).unwrap()));
        let gpus = if random.random_bool(0.5) { 1 } else { 2 };
        let device = Device { transfer, gpus, aggregates: true, ..Device::with(limits[case as usize % 2]) };
        let strategy = STRATEGIES[case as usize % STRATEGIES.len()];
        let stock = settings(2, false);
        let partitions = random.random_range(1..=3);
        let settings = Settings {
            strategy: strategy.into(),
            device: Some(device),
            batch_size: 2048,
            ..settings(partitions, random.random_bool(0.3))
        };
        // Sums that do not fit are errors on the CPU and on the device; stock DataFusion's wrap.
        let on_cpu = run(&open(Engine::Overspill, &stock, rows, keys, null_keys).await, &sql).await.answer;
        let session = open(Engine::Overspill, &settings, rows, keys, null_keys).await;
        let run = run(&session, &sql).await;
        let report = run.report.device;
        let case = format!("case {case}, {sql} over {rows:?} rows by {strategy}, {device:?}: {report:?}\n{}", run.plan);
        if let Err(error) = on_cpu {
            assert!(error.to_string().contains("beyond the range"), "{case}: {error}");
            let ours = run.answer.map(|_| ()).unwrap_err().to_string();
            assert!(ours.contains("beyond the range"), "{case}: {ours}");
            overflowed += 1;
            drop(session);
            overspill::OverspillRuntime::of_process().release();
            continue;
        }
        let expected = self::run(&open(Engine::Stock, &stock, rows, keys, null_keys).await, &sql).await.answer.unwrap();
        assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
        assert_eq!(report.failures, Vec::<String>::new(), "{case}");
        fused += usize::from(run.plan.contains("JoinAggregateExec"));
        if is_narrow && !null_keys {
            assert!(run.plan.contains("JoinAggregateExec"), "{case}");
            assert_eq!(report.aggregated_rows, report.probe_rows, "{case}");
        }
        aggregated += report.aggregated_rows;
        others += report.probe_rows - report.aggregated_rows;
        drop(session);
        overspill::OverspillRuntime::of_process().release();
    }
    println!(
        "{fused} of {CASES} plans fused, {aggregated} rows aggregated by kernels, {others} joined to pairs, {overflowed} overflowed"
    );
    assert!(overflowed * 4 < CASES, "{overflowed}");
    assert!(fused as u64 > CASES / 2 && aggregated > 100_000 && others > 0, "{fused}, {aggregated}, {others}");
    assert_eq!(leftovers(&emulated), None);
}

const SQL: &str = "SELECT count(*), sum(a.i32), min(b.i64), max(a.i32) FROM a JOIN b ON a.k = b.k";
const ROWS: [usize; 2] = [3_000, 4_000];
const KEYS: [usize; 2] = [3_001, 3_001];

async fn expected() -> Answer {
    run(&open(Engine::Stock, &settings(2, false), ROWS, KEYS, false).await, SQL).await.answer.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_nothing_is_counted_twice() {
    let emulated = start(64 * MIB);
    let expected = expected().await;
    let (mut limit, mut fired) = (17 * MIB, 0);
    let kinds = ["allocation", "copy", "launch", "synchronisation", "device_lost"];
    let cases = share_of(STRATEGIES.into_iter().flat_map(|strategy| kinds.map(|kind| (strategy, kind))));
    for &(strategy, kind) in &cases {
        let mut place = 1;
        while place < 60 {
            limit += 1;
            let device = Some(Device { aggregates: true, ..Device::with(limit) });
            let settings = Settings { strategy: strategy.into(), device, ..settings(2, false) };
            let session = open(Engine::Overspill, &settings, ROWS, KEYS, false).await;
            rows_of_nothing(&session).await;
            emulated.configure(&format!("fail={kind}:{place}"));
            let run = run(&session, SQL).await;
            let report = run.report.device;
            let case = format!("{kind} {place} failing by {strategy}: {report:?}");
            assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
            let has_fired = !report.failures.is_empty() || !report.refusals.is_empty();
            fired += usize::from(has_fired);
            emulated.configure(&format!("fail={kind}:0"));
            drop(session);
            let left = leftovers(&emulated);
            if kind == "device_lost" && has_fired {
                emulated.configure("reset=1;memory=67108864");
            } else {
                assert_eq!(left, None, "{case}");
            }
            place += (place / 2).max(1);
        }
    }
    println!("{fired} failures, each with the right answer");
    assert!(fired > 2 * cases.len(), "{fired} failures");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pairs_that_nobody_wants_do_not_cross_the_link() {
    let emulated = start(64 * MIB);
    let expected = expected().await;
    for strategy in [Strategy::GpuNoPartition, Strategy::Triton, Strategy::CpuPartitioned] {
        let mut link_bytes = vec![];
        for aggregates in [true, false] {
            let device = Device { aggregates, ..Device::with(64 * MIB) };
            let settings = Settings { strategy: strategy.into(), device: Some(device), ..settings(1, false) };
            let run = run(&open(Engine::Overspill, &settings, ROWS, KEYS, false).await, SQL).await;
            let report = run.report.device;
            let case = format!("{strategy}, {aggregates}: {report:?}\n{}", run.plan);
            assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
            assert_eq!(run.plan.contains("JoinAggregateExec"), aggregates, "{case}");
            assert_eq!(report.aggregated_rows, if aggregates { report.probe_rows } else { 0 }, "{case}");
            link_bytes.push(report.link_bytes);
        }
        assert!(link_bytes[0] < link_bytes[1], "{strategy}: {link_bytes:?}");
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_beside_each_other_count_their_own_pairs() {
    let emulated = start(64 * MIB);
    // Both have the same join below; one wants more of it than aggregates.
    let both = "SELECT count(*) AS c, sum(a.i32) AS s FROM a JOIN b ON a.k = b.k \
                UNION ALL SELECT count(*), sum(b.i32) FROM a JOIN b ON a.k = b.k";
    let more = "SELECT count(*) AS c, sum(x) AS s FROM (SELECT a.i32 AS x FROM a JOIN b ON a.k = b.k \
                UNION ALL SELECT b.i32 FROM a JOIN b ON a.k = b.k WHERE b.i16 > 0)";
    for sql in [both, more] {
        let expected =
            run(&open(Engine::Stock, &settings(2, false), ROWS, KEYS, false).await, sql).await.answer.unwrap();
        for strategy in STRATEGIES {
            let device = Some(Device { aggregates: true, ..Device::with(64 * MIB) });
            let settings = Settings { strategy: strategy.into(), device, ..settings(2, false) };
            let run = run(&open(Engine::Overspill, &settings, ROWS, KEYS, false).await, sql).await;
            assert_eq!(run.answer.unwrap().difference(&expected), None, "{sql} by {strategy}\n{}", run.plan);
        }
    }
    assert_eq!(leftovers(&emulated), None);
}

/// A stream leaves its last rows to the last one, which joins them as one chunk if they are no more than that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_leave_their_last_rows_to_one_another() {
    let emulated = start(64 * MIB);
    for (rows, limit, strategy) in [
        ([20_000, 40_000], 64 * MIB, Strategy::Triton),
        ([20_000, 40_000], 64 * MIB, Strategy::CpuPartitioned),
        ([3_000, 300_000], 16 * MIB, Strategy::Triton),
        ([3_000, 300_000], 16 * MIB, Strategy::CpuPartitioned),
    ] {
        let stock = open(Engine::Stock, &settings(2, false), rows, KEYS, false).await;
        let expected = run(&stock, SQL).await.answer.unwrap();
        let mut reports = vec![];
        for partitions in [1, 4] {
            let prefix_sum = Choice(Some(PrefixSumProcessor::Cpu));
            let device = Some(Device { aggregates: true, prefix_sum, ..Device::with(limit) });
            let settings =
                Settings { strategy: strategy.into(), device, batch_size: 2048, ..settings(partitions, false) };
            let session = open(Engine::Overspill, &settings, rows, KEYS, false).await;
            let run = run(&session, SQL).await;
            let report = run.report.device;
            let case = format!("{rows:?} rows in {partitions} by {strategy}: {report:?}\n{}", run.plan);
            assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
            assert_eq!((report.aggregated_rows, report.returned_rows), (rows[1], 0), "{case}");
            reports.push(report);
            drop(session);
            overspill::OverspillRuntime::of_process().release();
        }
        let [one, four] = &reports[..] else { unreachable!() };
        let case = format!("{rows:?} rows by {strategy}: {one:?}, {four:?}");
        // The build side, and a chunk.
        let counted = |report: &DeviceReport| report.cpu_prefix_sums;
        if limit > 16 * MIB {
            assert_eq!(counted(one), if strategy == Strategy::Triton { 2 } else { 0 }, "{case}");
            assert_eq!((counted(one), one.link_bytes), (counted(four), four.link_bytes), "{case}");
        } else if strategy == Strategy::Triton {
            assert!(counted(one) > 2 && counted(four) > 2, "{case}");
        }
    }
    assert_eq!(leftovers(&emulated), None);
}

/// Both with one task, as one execution has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_is_executed_twice_at_once_counts_its_pairs_twice() {
    let emulated = start(64 * MIB);
    let sql = "SELECT count(*) FROM a JOIN b ON a.k = b.k";
    for strategy in STRATEGIES {
        let device = Some(Device { aggregates: true, ..Device::with(64 * MIB) });
        let settings = Settings { strategy: strategy.into(), device, batch_size: 256, ..settings(2, false) };
        let session = open(Engine::Overspill, &settings, ROWS, KEYS, false).await;
        let batches = session.ctx.sql(sql).await.unwrap().collect().await.unwrap();
        let expected = batches[0].column(0).as_primitive::<Int64Type>().value(0);
        for _ in 0..5 {
            let plan = session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            let mut node = &plan;
            while node.name() != "JoinAggregateExec" {
                node = node.children()[0];
            }
            let task = session.ctx.task_ctx();
            let streams = [0, 1].map(|_| tokio::spawn(collect(node.execute(0, Arc::clone(&task)).unwrap())));
            for stream in streams {
                let states = stream.await.unwrap().unwrap();
                let counts = states.iter().map(|state| sum(state.column(0).as_primitive::<Int64Type>()).unwrap());
                assert_eq!(counts.sum::<i64>(), expected, "{strategy}");
            }
        }
        drop(session);
        assert_eq!(leftovers(&emulated), None, "{strategy}");
    }
}
