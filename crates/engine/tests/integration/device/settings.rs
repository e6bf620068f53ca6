//! Settings that users choose, and the notes and errors that answer them.

use overspill::{Choice, PrefixSumProcessor, Strategy};
use overspill_advisor::triton_link_bytes;
use overspill_machine::transfer::TransferMethod;

use super::{MIB, STRATEGIES, leftovers, rows, start};
use crate::harness::fixture::{JOINS, Size, register, settings};
use crate::harness::rows::Answer;
use crate::harness::run::Run;
use crate::harness::session::{Device, Engine, Memory, Session, Settings};

const SIZE: Size = Size { build: 60_000, probe: 40_000 };

const JOIN: &str = "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_k = b_id";

fn on_device(strategy: Strategy, device: Device) -> Settings {
    Settings { strategy: strategy.into(), device: Some(device), batch_size: 8192, ..settings(2, false) }
}

async fn run(settings: &Settings, sql: &str) -> Run {
    run_with(SIZE, Engine::Overspill, settings, sql).await
}

async fn expected(size: Size, sql: &str) -> Answer {
    run_with(size, Engine::Stock, &settings(2, false), sql).await.answer.unwrap()
}

async fn run_with(size: Size, engine: Engine, settings: &Settings, sql: &str) -> Run {
    let session = Session::open(engine, settings, Memory::Ample).unwrap();
    register(&session.ctx, size, settings.target_partitions).unwrap();
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_transfer_method_gives_the_answer_or_is_refused_by_name() {
    let emulated = start(64 * MIB);
    let expected = expected(SIZE, JOIN).await;
    for method in TransferMethod::ALL {
        let device = Device { transfer: Choice(Some(method)), ..Device::with(64 * MIB) };
        let run = run(&on_device(Strategy::GpuNoPartition, device), JOIN).await;
        assert_eq!(run.answer.unwrap().difference(&expected), None, "{method}");
        let report = run.report.device;
        assert_eq!((report.failures.as_slice(), report.returned_rows), (&[] as &[String], 0), "{method}");
        if method == TransferMethod::Coherence {
            let refused = report
                .refusals
                .iter()
                .any(|reason| reason.starts_with("gpu_no_partition: the transfer method coherence does not work here"));
            assert!(refused && report.triton_joins == 1, "{report:?}");
        } else {
            assert_eq!((report.refusals.as_slice(), report.no_partition_joins), (&[] as &[String], 1), "{method}");
        }
    }
    emulated.configure("coherent=1");
    overspill::OverspillRuntime::of_process().release();
    let device = Device { transfer: Choice(Some(TransferMethod::Coherence)), ..Device::with(64 * MIB - 1) };
    let run = run(&on_device(Strategy::GpuNoPartition, device), JOIN).await;
    assert_eq!(run.answer.unwrap().difference(&expected), None);
    assert_eq!((run.report.device.no_partition_joins, run.report.device.refusals), (1, vec![]));
    assert_eq!(leftovers(&emulated), None);
}

/// Mapped and registered memory stays for the next join of its kind, as far as the limits allow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_join_maps_and_registers_nothing() {
    let emulated = start(256 * MIB);
    let expected = expected(SIZE, JOIN).await;
    for strategy in [Strategy::Triton, Strategy::GpuNoPartition] {
        let device = Device { cached_share: 0.5, ..Device::with(256 * MIB) };
        let settings = Settings { target_partitions: 1, ..on_device(strategy, device) };
        let made = || (emulated.statistics().mappings_made, emulated.statistics().registrations_made);
        let before = made();
        for run_number in 0..3 {
            let begin = made();
            let run = run(&settings, JOIN).await;
            assert_eq!(run.answer.unwrap().difference(&expected), None, "{strategy}");
            assert_eq!((run.report.device.joins(), run.report.device.failures.len()), (1, 0), "{strategy}");
            assert!(run_number == 0 || made() == begin, "{strategy}: run {run_number} from {begin:?} to {:?}", made());
        }
        let (mappings, registrations) = made();
        assert!(registrations > before.1, "{strategy}: nothing was registered at all");
        assert!(strategy != Strategy::Triton || mappings > before.0, "nothing was mapped at all");
        assert_eq!(leftovers(&emulated), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_across_a_link_without_atomics_is_filled_by_the_cpu() {
    let emulated = start(256 * MIB);
    const SIZE: Size = Size { build: 300_000, probe: 40_000 };
    // Keys far apart, whose table of 16 MiB is twice what may stay on the GPU.
    let sql = "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_id * 1000003 = b_id * 3000009";
    let expected = expected(SIZE, sql).await;
    for coherent in [false, true] {
        emulated.configure(&format!("coherent={}", u8::from(coherent)));
        let limit = 16 * MIB + usize::from(coherent);
        let run =
            run_with(SIZE, Engine::Overspill, &on_device(Strategy::GpuNoPartition, Device::with(limit)), sql).await;
        let report = run.report.device;
        let case = format!("coherent: {coherent}: {report:?}");
        assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
        assert_eq!((report.joins(), report.refusals.len(), report.returned_rows), (1, 0, 0), "{case}");
        assert!(report.spilled_bytes > 0, "{case}");
        let told = report.notes.iter().any(|note| note.contains("the link to the GPU has no system-wide atomics"));
        assert_eq!(told, !coherent, "{case}");
    }
    emulated.configure("coherent=0");
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_the_device_is_spilled_or_refused_by_name() {
    let emulated = start(256 * MIB);
    // Keys far apart; half of those of `b` have a match.
    let sql = "SELECT sum(a_id), sum(b_id) FROM a JOIN b ON a_id * 1000003 = b_id * 3000009";
    const MATCHES: usize = SIZE.build / 3;
    let expected = expected(SIZE, sql).await;
    let mut link_bytes = vec![];
    for (limit, strategy, cached_share, prefix_sum) in [
        (256 * MIB, Strategy::Triton, 1.0, Choice(Some(PrefixSumProcessor::Gpu))),
        (256 * MIB, Strategy::Triton, 0.5, Choice(Some(PrefixSumProcessor::Gpu))),
        (16 * MIB, Strategy::Triton, 0.79, Choice(Some(PrefixSumProcessor::Gpu))),
        (16 * MIB, Strategy::Triton, 0.0, Choice(Some(PrefixSumProcessor::Gpu))),
        (256 * MIB, Strategy::Triton, 1.0, Choice(Some(PrefixSumProcessor::Cpu))),
        (256 * MIB, Strategy::Triton, 0.5, Choice(Some(PrefixSumProcessor::Cpu))),
        (16 * MIB, Strategy::Triton, 0.79, Choice(Some(PrefixSumProcessor::Cpu))),
        (16 * MIB, Strategy::Triton, 0.0, Choice::AUTO),
        (16 * MIB, Strategy::CpuPartitioned, 0.0, Choice::AUTO),
    ] {
        // One stream, whose chunk is joined alone.
        let device = Device { cached_share, prefix_sum, ..Device::with(limit) };
        let settings = on_device(strategy, device);
        let run = run(&Settings { target_partitions: 1, ..settings }, sql).await;
        let report = run.report.device;
        let case = format!("{strategy} with {limit} bytes, {cached_share} cached, counted by {prefix_sum}: {report:?}");
        assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
        assert_eq!((report.joins(), report.failures.len(), report.returned_rows), (1, 0, 0), "{case}");
        assert_eq!((report.build_rows, report.probe_rows), (SIZE.build, SIZE.probe), "{case}");
        assert_eq!(report.spilled_bytes > 0, cached_share < 1.0, "{case}");
        // Across a link that is not coherent the CPU counts, also where one thread does.
        let by_cpu = strategy == Strategy::Triton && prefix_sum != Choice(Some(PrefixSumProcessor::Gpu));
        assert_eq!(report.cpu_prefix_sums, if by_cpu { 2 } else { 0 }, "{case}");
        if strategy == Strategy::Triton {
            // A key and a packed column of each row.
            let (bytes, keys) = (|rows: usize| 16.0 * rows as f64, 8.0 * (SIZE.build + SIZE.probe) as f64);
            let cached = 1.0 - report.spilled_bytes as f64 / report.state_bytes as f64;
            let processor = if by_cpu { PrefixSumProcessor::Cpu } else { PrefixSumProcessor::Gpu };
            let traffic =
                triton_link_bytes(bytes(SIZE.build), bytes(SIZE.probe), keys, cached, processor, bytes(MATCHES));
            let off = report.link_bytes as f64 / traffic.link_bytes().total() - 1.0;
            assert!(off.abs() < 0.05, "{case}: {off:.3} off {traffic:?}");
        }
        link_bytes.push(report.link_bytes);
    }
    // The more is cached, the less crosses the link; and keys cross it once if the CPU counts them.
    for by_processor in link_bytes[..8].chunks(4) {
        assert!(by_processor.is_sorted() && by_processor[0] < by_processor[3], "{link_bytes:?}");
    }
    assert!((0..4).all(|case| link_bytes[4 + case] < link_bytes[case]), "{link_bytes:?}");
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_join_type_runs_on_the_device() {
    let emulated = start(64 * MIB);
    for strategy in STRATEGIES {
        for (name, sql, _) in JOINS {
            let settings = on_device(strategy, Device::with(64 * MIB));
            let run = run_with(Size::SPILLING, Engine::Overspill, &settings, sql).await;
            let report = run.report.device;
            let case = format!("{name} by {strategy}: {report:?}");
            assert_eq!(run.answer.unwrap().difference(&expected(Size::SPILLING, sql).await), None, "{case}");
            assert_eq!((report.joins(), report.failures.len()), (1, 0), "{case}");
            assert!(report.probe_rows > 0, "{case}");
        }
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_processors_join_and_the_faster_joins_more() {
    const LARGE: Size = Size { build: 60_000, probe: 600_000 };
    let emulated = start(64 * MIB);
    let sparse = "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_id * 1000003 = b_id * 3000009";
    let text = "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON concat('key ', a_id) = concat('key ', b_id)";
    let twice = "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_id / 2 = b_id / 3";
    for sql in [JOIN, sparse, text, twice] {
        let expected = expected(LARGE, sql).await;
        for (strategy, coherent) in
            [(Strategy::Het, false), (Strategy::Het, true), (Strategy::GpuHet, false), (Strategy::GpuHet, true)]
        {
            emulated.configure(&format!("coherent={}", u8::from(coherent)));
            overspill::OverspillRuntime::of_process().release();
            let settings = on_device(strategy, Device::with(64 * MIB - usize::from(coherent)));
            let run = run_with(LARGE, Engine::Overspill, &settings, sql).await;
            let report = run.report.device;
            let case = format!("{sql} by {strategy}, coherent: {coherent}: {report:?}");
            assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
            let joins = (report.het_joins, report.gpu_het_joins);
            assert_eq!(joins, if strategy == Strategy::Het { (1, 0) } else { (0, 1) }, "{case}");
            // The emulated device is the slower, and takes part all the same.
            assert!(report.probe_rows >= 1 << 16 && report.shared_rows > 0, "{case}");
            assert_eq!(report.probe_rows + report.shared_rows + report.returned_rows, LARGE.probe, "{case}");
            let notes: &[&str] = match strategy {
                Strategy::Het if sql == JOIN || sql == twice => {
                    &["het: the CPU builds alone: keys that repeat are grouped"]
                }
                Strategy::Het if !coherent => {
                    &["het: the CPU builds alone: the link to the GPU has no system-wide atomics"]
                }
                _ => &[],
            };
            // The strategy was taken all the same.
            assert_eq!(report.notes, notes, "{case}");
            let refused: &[String] = &[];
            assert_eq!(
                (report.refusals.as_slice(), report.failures.len(), report.returned_rows),
                (refused, 0, 0),
                "{case}"
            );
        }
    }
    emulated.configure("coherent=0");
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_processors_mark_the_rows_of_a_key() {
    // A third of the build rows have one key, as 1,000 probe rows have, which either processor finds.
    const LARGE: Size = Size { build: 6_000, probe: 400_000 };
    let emulated = start(64 * MIB);
    for sql in [
        "SELECT a_id FROM a LEFT SEMI JOIN b ON a_k = b_k",
        "SELECT a_id FROM a LEFT ANTI JOIN b ON a_k = b_k",
        "SELECT a_id FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a_k = b_k) OR a_id % 3 = 0",
        // Pairs that must be looked at: of hashes, and with a filter.
        "SELECT a_id FROM a LEFT SEMI JOIN b ON concat('key ', a_k) = concat('key ', b_k)",
        "SELECT a_id FROM a LEFT SEMI JOIN b ON a_k = b_k AND a_id > b_id",
    ] {
        let expected = expected(LARGE, sql).await;
        for strategy in [Strategy::Het, Strategy::GpuHet] {
            let run = run_with(LARGE, Engine::Overspill, &on_device(strategy, Device::with(64 * MIB)), sql).await;
            let report = run.report.device;
            let case = format!("{sql} by {strategy}: {report:?}");
            assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
            assert!(report.probe_rows > 0 && report.shared_rows > 0, "{case}");
            assert_eq!((report.joins(), report.failures.len()), (1, 0), "{case}");
        }
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_device_is_given_batch_after_batch() {
    let emulated = start(64 * MIB);
    let build = "CREATE TABLE r AS SELECT value * 1000003 AS k, value AS p FROM generate_series(1, 1000)";
    let sql = "SELECT count(*) AS n, sum(p) AS p, sum(value) AS q FROM r JOIN generate_series(1, 6000000) ON k = value * 1000003";
    for strategy in [Strategy::Het, Strategy::GpuHet] {
        // One stream, which looks at what has landed between the batches that it joins itself.
        let settings = Settings { target_partitions: 1, ..on_device(strategy, Device::with(64 * MIB)) };
        let session = Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap();
        session.ctx.sql(build).await.unwrap().collect().await.unwrap();
        let run = Run::of(&session.ctx, session.ctx.sql(sql).await).await;
        let expected = "SELECT 1000 AS n, sum(value) AS p, sum(value) AS q FROM generate_series(1, 1000)";
        let expected = Run::of(&session.ctx, session.ctx.sql(expected).await).await.answer.unwrap();
        let report = run.report.device;
        assert_eq!(run.answer.unwrap().difference(&expected), None, "{strategy}: {report:?}");
        // The second batch has twice the rows of the first.
        assert!(report.probe_rows > 3 << 16 && report.shared_rows > 0, "{strategy}: {report:?}");
        assert_eq!(report.probe_rows + report.shared_rows, 6_000_000, "{strategy}: {report:?}");
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_the_device_has_no_room_for_is_shared() {
    let emulated = start(16 * MIB);
    // More than half of the device's memory.
    let large = Size { build: 600_000, probe: 1_000 };
    let sql = "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_id * 1000003 = b_id * 3000009";
    let run = run_with(large, Engine::Overspill, &on_device(Strategy::GpuHet, Device::with(16 * MIB)), sql).await;
    let report = run.report.device;
    assert_eq!(run.answer.unwrap().difference(&expected(large, sql).await), None, "{report:?}");
    let too_small = report.refusals.iter().any(|reason| {
        reason.starts_with("gpu_het: the hash table of a join") && reason.contains("the half of GPU memory")
    });
    assert!(too_small && report.het_joins == 1, "{report:?}");
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_with_many_matches_stay_on_the_device() {
    let emulated = start(16 * MIB);
    // Of `p` all bits are set, which tables of unique keys take for an empty slot.
    let tables = [
        "CREATE TABLE r AS SELECT value % 3000 AS k, -1 AS p FROM generate_series(1, 30000)",
        "CREATE TABLE u AS SELECT value AS k, -1 AS p FROM generate_series(1, 30000)",
        // Few enough that their pairs fit one unit, whichever stream gets them.
        "CREATE TABLE s AS SELECT value % 3000 AS k, value AS q FROM generate_series(1, 13000)",
    ];
    for strategy in [Strategy::GpuNoPartition, Strategy::Triton, Strategy::CpuPartitioned] {
        for (build, matches, times) in [("r", 130_000, 10), ("u", 12_996, 1)] {
            let settings = on_device(strategy, Device::with(16 * MIB));
            let session = Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap();
            for table in tables {
                session.ctx.sql(table).await.unwrap().collect().await.unwrap();
            }
            let sql = format!("SELECT count(*) AS n, sum(p) AS p, sum(q) AS q FROM {build} JOIN s ON {build}.k = s.k");
            let run = Run::of(&session.ctx, session.ctx.sql(&sql).await).await;
            let case = format!("{build} by {strategy}: {:?}", run.report.device);
            // Keys of `s` that are 0 are not in `u`.
            let sum = if build == "r" { 10 * 84_506_500_i64 } else { 84_506_500 - 3000 * (4 * 5 / 2) };
            let expected = format!("SELECT {matches} AS n, {} AS p, {sum} AS q", -matches);
            let expected = Run::of(&session.ctx, session.ctx.sql(&expected).await).await.answer.unwrap();
            assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
            let report = run.report.device;
            assert_eq!((report.joins(), report.returned_rows, report.refusals.len()), (1, 0, 0), "{case}");
            assert!(times * report.probe_rows >= matches as usize, "{case}");
        }
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_of_about_the_planned_size_lose_no_rows() {
    let emulated = start(16 * MIB);
    // In 16 MiB about 57,000 tuples are planned for, whichever side has one key only.
    for strategy in [Strategy::Triton, Strategy::CpuPartitioned] {
        for rows in (56_800..57_000).step_by(13) {
            for (build, probe) in [("one", "many"), ("many", "one")] {
                let settings = Settings { target_partitions: 1, ..on_device(strategy, Device::with(16 * MIB)) };
                let session = Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap();
                for table in [
                    "CREATE TABLE one AS SELECT value + 6 AS k, value AS v FROM generate_series(1, 100)".to_owned(),
                    format!("CREATE TABLE many AS SELECT 7 AS k, value AS w FROM generate_series(1, {rows})"),
                ] {
                    session.ctx.sql(&table).await.unwrap().collect().await.unwrap();
                }
                let sql = format!("SELECT count(*) AS n FROM {build} JOIN {probe} ON {build}.k = {probe}.k");
                let run = Run::of(&session.ctx, session.ctx.sql(&sql).await).await;
                let expected = format!("SELECT {rows} AS n");
                let expected = Run::of(&session.ctx, session.ctx.sql(&expected).await).await.answer.unwrap();
                let case = format!("{rows} rows, {build} built, by {strategy}: {:?}", run.report.device);
                assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
                assert_eq!(run.report.device.joins(), 1, "{case}");
            }
        }
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test]
async fn settings_that_cannot_be_are_sentences() {
    let emulated = start(64 * MIB);
    let tiny = run(&on_device(Strategy::Triton, Device::with(MIB)), JOIN).await.answer.err().unwrap().to_string();
    for part in ["16777216 bytes of GPU memory (overspill.gpu_memory_limit)", "SET overspill.device = cpu"] {
        assert!(tiny.contains(part), "{tiny}");
    }
    let share = Device { cached_share: 1.5, ..Device::with(64 * MIB) };
    let error = run(&on_device(Strategy::Triton, share), JOIN).await.answer.err().unwrap().to_string();
    assert!(error.contains("overspill.gpu_cached_share = 1.5 is not a share"), "{error}");
    let session = Session::open(Engine::Overspill, &settings(2, false), Memory::Ample).unwrap();
    let error = session.ctx.sql("SET overspill.device = tpu").await.unwrap_err().to_string();
    assert!(error.contains("overspill.device = 'tpu' is none of: auto, cpu, gpu, emulated"), "{error}");
    let error = session.ctx.sql("SET overspill.transfer_method = fax").await.unwrap_err().to_string();
    assert!(error.contains("pageable-copy, staged-copy"), "{error}");
    let error = session.ctx.sql("SET overspill.gpu_prefix_sum = both").await.unwrap_err().to_string();
    assert!(error.contains("overspill.gpu_prefix_sum = 'both' is none of: auto, cpu, gpu"), "{error}");
    let error = session.ctx.sql("SET overspill.gpu_link_compression = zip").await.unwrap_err().to_string();
    assert!(error.contains("overspill.gpu_link_compression = 'zip' is none of: auto, cascaded, off"), "{error}");
    // On the CPU nothing is opened.
    assert_eq!(overspill::OverspillConfig::default().device, Choice::AUTO);
    session.ctx.sql("SET overspill.strategy = triton").await.unwrap();
    session.ctx.sql("SET overspill.device = cpu").await.unwrap();
    register(&session.ctx, SIZE, 2).unwrap();
    assert_eq!(rows(&session.ctx, JOIN).await, 1);
    assert_eq!(leftovers(&emulated), None);
}
