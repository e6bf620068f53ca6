//! Rows that cross the link to the device compressed.

use overspill::{Choice, GpuLinkCompression, Strategy};
use overspill_machine::transfer::TransferMethod;

use super::{MIB, leftovers, start};
use crate::harness::fixture::{Size, register, settings};
use crate::harness::plan::DeviceReport;
use crate::harness::run::Run;
use crate::harness::session::{Device, Engine, Memory, Session, Settings};

/// Each of two streams has more than two pieces of what is compressed at once.
const SIZE: Size = Size { build: 30_000, probe: 300_000 };

async fn run(engine: Engine, strategy: Strategy, device: Device, sql: &str) -> Run {
    run_in(2, engine, strategy, device, sql).await
}

async fn run_in(partitions: usize, engine: Engine, strategy: Strategy, device: Device, sql: &str) -> Run {
    let device = Some(device);
    let settings = Settings { strategy: strategy.into(), device, batch_size: 8192, ..settings(partitions, false) };
    let session = Session::open(engine, &settings, Memory::Ample).unwrap();
    register(&session.ctx, SIZE, partitions).unwrap();
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

/// Runs the query with rows compressed and not, and returns what the device has done in both.
async fn both(strategy: Strategy, device: Device, sql: &str) -> [DeviceReport; 2] {
    let expected = run(Engine::Stock, strategy, device, sql).await.answer.unwrap();
    let mut reports = vec![];
    for compression in [GpuLinkCompression::Cascaded, GpuLinkCompression::Off] {
        let device = Device { link_compression: Choice(Some(compression)), ..device };
        let run = run(Engine::Overspill, strategy, device, sql).await;
        let report = run.report.device;
        let case = format!("{sql} by {strategy}, {compression:?}: {report:?}");
        assert_eq!(run.answer.unwrap().difference(&expected), None, "{case}");
        let problems = (report.failures.as_slice(), report.refusals.as_slice(), report.returned_rows);
        assert_eq!((report.joins(), problems), (1, (&[] as &[_], &[] as &[_], 0)), "{case}");
        reports.push(report);
        overspill::OverspillRuntime::of_process().release();
    }
    let Ok([compressed, plain]) = <[DeviceReport; 2]>::try_from(reports) else { unreachable!() };
    assert_eq!(plain.saved_link_bytes, 0, "{plain:?}");
    [compressed, plain]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_rows_give_the_answer_over_fewer_bytes() {
    let emulated = start(256 * MIB);
    // Each row of b has a partner. The device hands on pairs, or aggregates of packed columns of both sides.
    let pairs = "SELECT count(*), sum(a_id), sum(b_id), min(b_s) FROM a JOIN b ON a_id = b_id % 30000";
    let aggregates = "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_id = b_id % 30000";
    for strategy in [Strategy::GpuNoPartition, Strategy::CpuPartitioned] {
        for limit in [256 * MIB, 16 * MIB] {
            for (sql, aggregates) in [(pairs, false), (aggregates, true)] {
                let [compressed, plain] = both(strategy, Device { aggregates, ..Device::with(limit) }, sql).await;
                let case = format!("{sql} by {strategy} in {limit} bytes: {compressed:?}\n{plain:?}");
                assert_eq!(compressed.aggregated_rows, if aggregates { SIZE.probe } else { 0 }, "{case}");
                assert_eq!(compressed.aggregated_rows, plain.aggregated_rows, "{case}");
                let (fewer, saved) = (compressed.link_bytes, compressed.saved_link_bytes);
                assert!(saved > SIZE.probe * 4 && fewer < plain.link_bytes, "{case}");
                if limit > 16 * MIB {
                    // Nothing was read twice.
                    assert_eq!(fewer + saved, plain.link_bytes, "{case}");
                }
            }
        }
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_become_smaller_crosses_as_it_is() {
    let emulated = start(256 * MIB);
    // Hashes of texts, and numbers of rows, which are not transferred to a hash table.
    let texts = "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON 'x' || a_id = 'x' || (b_id % 30000)";
    let [compressed, plain] = both(Strategy::GpuNoPartition, Device::with(256 * MIB), texts).await;
    assert_eq!((compressed.saved_link_bytes, compressed.link_bytes), (0, plain.link_bytes), "{compressed:?}");
    // Partitions have them beside the hashes.
    let [compressed, plain] = both(Strategy::CpuPartitioned, Device::with(256 * MIB), texts).await;
    assert!(compressed.saved_link_bytes > 0 && compressed.link_bytes < plain.link_bytes, "{compressed:?}");
    // Copies that a slower method makes are not compressed, nor are rows that both processors look up.
    let numbers = "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_id = b_id % 30000";
    let copied = Device { transfer: Choice(Some(TransferMethod::PinnedCopy)), ..Device::with(256 * MIB) };
    for (strategy, device) in [(Strategy::GpuNoPartition, copied), (Strategy::Het, Device::with(256 * MIB))] {
        let [compressed, _] = both(strategy, device, numbers).await;
        assert_eq!(compressed.saved_link_bytes, 0, "{strategy}: {compressed:?}");
    }
    assert_eq!(leftovers(&emulated), None);
}

/// The last rows of a piece have too many matches for the memory that pairs have: they are left to the CPU, and the GPU goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_with_many_matches_are_left_and_others_go_on() {
    let emulated = start(256 * MIB);
    let sql = "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON \
               CASE WHEN a_id < 10000 THEN -1 ELSE a_id END = \
               CASE WHEN b_id BETWEEN 65500 AND 65540 OR b_id = 200000 THEN -1 ELSE b_id % 30000 END";
    let link_compression = Choice(Some(GpuLinkCompression::Cascaded));
    let device = Device { link_compression, ..Device::with(16 * MIB) };
    let strategy = Strategy::GpuNoPartition;
    let expected = run_in(1, Engine::Stock, strategy, device, sql).await.answer.unwrap();
    let run = run_in(1, Engine::Overspill, strategy, device, sql).await;
    let report = run.report.device;
    assert_eq!(run.answer.unwrap().difference(&expected), None, "{report:?}");
    assert!(report.refusals.iter().any(|reason| reason.contains("the matches of a few probe rows")), "{report:?}");
    assert_eq!((report.joins(), report.failures.as_slice()), (1, &[] as &[String]), "{report:?}");
    // Those up to the end of the piece; the others are so few that their pairs fit.
    assert_eq!(report.returned_rows, 65_536 - 65_504, "{report:?}");
    assert!(report.saved_link_bytes > SIZE.probe * 4, "{report:?}");
    assert_eq!(leftovers(&emulated), None);
}
