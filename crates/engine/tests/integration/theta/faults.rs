//! The n-th reservation, write, read, … of a join fails.

use std::sync::Arc;

use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tempfile::TempDir;

use super::case::{SPILLING, floor, register, settings};
use crate::faults::files::{Fault, FaultyFiles};
use crate::faults::pool::FaultyPool;
use crate::harness::run::{Run, is_broken};
use crate::harness::session::{Engine, Memory, Session};

const STREAMS: usize = 2;

/// Rows of the probe side that only the last pass over the build side can decide, rows of the build side that only the
/// last probe row can decide, and both.
const QUERIES: [&str; 3] = [
    "SELECT a_id, a_w, b_id, b_w FROM a FULL JOIN b ON a_i BETWEEN b_i AND b_hi AND a_j > 30",
    "SELECT a_id, a_w FROM a LEFT ANTI JOIN b ON a_i < b_i - 500",
    "SELECT b_id, b_w FROM a RIGHT SEMI JOIN b ON a_i > b_i + 700 AND a_w <> b_w",
];

async fn run(session: &Session, sql: &str) -> Run {
    register(&session.ctx, SPILLING, STREAMS, &mut StdRng::seed_from_u64(7)).unwrap();
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nth_operation_fails() {
    let settings = settings(STREAMS, 500);
    for sql in QUERIES {
        let stock = Session::open(Engine::Stock, &settings, Memory::Ample).unwrap();
        let expected = run(&stock, sql).await.answer.unwrap();
        let faults = [Fault::Create, Fault::Write, Fault::DiskFull, Fault::Finish, Fault::Open, Fault::Read].map(Some);
        for fault in faults.into_iter().chain([None]) {
            let mut failures = 0;
            for place in std::iter::successors(Some(1), |place| Some(place * 2 + place / 3)) {
                let temp = TempDir::new().unwrap();
                let real =
                    DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![temp.path().into()]));
                let faulty_pool = Arc::new(FaultyPool::new(if fault.is_none() { place } else { usize::MAX }));
                let pool: Arc<dyn MemoryPool> = match fault {
                    None => Arc::clone(&faulty_pool) as _,
                    Some(_) => Arc::new(UnboundedMemoryPool::default()),
                };
                let files = fault
                    .map(|fault| Arc::new(FaultyFiles::new(Arc::new(real.clone().build().unwrap()), fault, place)));
                let disk = match &files {
                    Some(files) => DiskManagerBuilder::default().with_temp_file_factory(Arc::clone(files) as _),
                    None => real,
                };
                let session =
                    Session::open_with(Engine::Overspill, &settings, pool, floor(STREAMS), disk, temp).unwrap();
                let what = format!("{fault:?} {place}, {sql}");
                let ran = run(&session, sql).await;
                let fired = files.map_or(faulty_pool.fired(), |files| files.fired());
                match ran.answer {
                    Ok(answer) => {
                        assert_eq!(answer.difference(&expected), None, "{what}");
                        assert!(!fired || fault.is_none(), "{what}: answered all the same");
                    }
                    Err(error) => {
                        assert!(fired, "{what}: failed without a fault: {error}");
                        assert!(!is_broken(&error), "{what}: {error}");
                        assert!(error.strip_backtrace().split_whitespace().count() >= 4, "{what}: {error}");
                        failures += 1;
                    }
                }
                assert_eq!(session.leftovers().await, None, "{what}");
                if !fired {
                    break;
                }
            }
            assert!(failures > 0 || fault.is_none(), "{fault:?} was never met by {sql}");
        }
    }
}
