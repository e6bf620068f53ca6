//! Lookups in indexes on the device, and with every failure of its driver.

use std::sync::Arc;

use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::physical_plan::{ExecutionPlan, collect};
use overspill::{Choice, Strategy};

use super::faults::rows_of_nothing;
use super::{MIB, leftovers, start};
use crate::harness::rows::Answer;
use crate::harness::session::{Device, Engine, Memory, Session, Settings};
use crate::indexes::random::{Case, agree};
use crate::indexes::{metric, run};

/// A case without a strategy of the CPU, which keeps a join from its GPU.
fn on_gpu(number: u64) -> Case {
    let limit = [16 * MIB, 64 * MIB][number as usize % 2];
    let strategy = [None, Some(Strategy::GpuNoPartition), Some(Strategy::Triton)][number as usize % 3];
    Case::joining(number).on_gpu(Device::with(limit), Choice(strategy))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_joins_with_lookups_agree() {
    let emulated = start(64 * MIB);
    let (eligible, looked_up) = agree(100, on_gpu, "gpu_lookups").await;
    assert!(looked_up * 2 > eligible, "{looked_up} of {eligible}");
    assert_eq!(leftovers(&emulated), None);
}

const ROWS: &str = "SELECT value * 48271 % 150000 AS k, value AS v FROM generate_series(1, 200000)";
const KEYS: &str = "SELECT value * 7 AS k, value AS w FROM generate_series(1, 3000)";
const SQL: &str = "SELECT count(*), sum(r.v), sum(s.w) FROM s JOIN r ON s.k = r.k";

async fn open(engine: Engine, kind: &str, device: Option<Device>, memory: Memory) -> Session {
    let settings = Settings { device, batch_size: 8192, ..Settings::default() };
    let session = Session::open(engine, &settings, memory).unwrap();
    run(&session.ctx, &format!("CREATE TABLE r AS {ROWS}")).await.unwrap();
    run(&session.ctx, &format!("CREATE TABLE s AS {KEYS}")).await.unwrap();
    if engine == Engine::Overspill {
        run(&session.ctx, &format!("CREATE INDEX i ON r USING {kind} (k)")).await.unwrap();
        run(&session.ctx, "SET overspill.indexes = always").await.unwrap();
    }
    session
}

async fn answer(session: &Session) -> (Answer, Arc<dyn ExecutionPlan>) {
    let plan = session.ctx.sql(SQL).await.unwrap().create_physical_plan().await.unwrap();
    let rows = collect(Arc::clone(&plan), session.ctx.task_ctx()).await.unwrap();
    (Answer::new(plan.schema(), rows).unwrap(), plan)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_the_index_serves_all_joins_until_it_goes() {
    let emulated = start(64 * MIB);
    let expected = answer(&open(Engine::Stock, "", None, Memory::Ample).await).await.0;
    for kind in ["binary_search", "btree", "line_btree", "harmonia", "radix_spline"] {
        // An eighth of the smaller limit is no room for the index, which is then in CPU memory.
        for limit in [16 * MIB, 64 * MIB] {
            let session = open(Engine::Overspill, kind, Some(Device::with(limit)), Memory::Ample).await;
            let held = || {
                let statistics = emulated.statistics();
                if limit == 64 * MIB { statistics.device_bytes } else { statistics.pinned_bytes }
            };
            let mut bytes = vec![held()];
            for _ in 0..3 {
                let (found, plan) = answer(&session).await;
                assert_eq!(found.difference(&expected), None, "{kind}");
                assert_eq!((metric(&plan, "gpu_lookups"), metric(&plan, "index_joins")), (3000, 1), "{kind}");
                assert_eq!(metric(&plan, "index_rows"), 4023, "{kind}");
                drop(plan);
                bytes.push(held());
            }
            // 200,000 keys and row numbers, copied once.
            assert!(bytes[1] - bytes[0] > 2_400_000 && bytes[3] - bytes[1] < 2_400_000, "{kind} in {limit}: {bytes:?}");
            // Inserted rows are in an index of their own.
            run(&session.ctx, "INSERT INTO r SELECT k, v FROM r WHERE v <= 100").await.unwrap();
            let (_, plan) = answer(&session).await;
            assert_eq!(metric(&plan, "gpu_lookups"), 3000, "{kind}");
            drop(plan);
            drop(session);
            assert_eq!(leftovers(&emulated), None, "{kind}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_being_told_to_joins_do_not_wait_for_a_copy() {
    let emulated = start(64 * MIB);
    let session = open(Engine::Overspill, "harmonia", Some(Device::with(64 * MIB)), Memory::Ample).await;
    for statement in [
        "CREATE TABLE big AS SELECT value AS k FROM generate_series(1, 1000000)",
        "CREATE INDEX j ON big (k)",
        "CREATE TABLE many AS SELECT value * 41 AS k FROM generate_series(1, 20000)",
        "SET overspill.indexes = auto",
    ] {
        run(&session.ctx, statement).await.unwrap();
    }
    let mut lookups = Vec::new();
    for _ in 0..200 {
        let sql = "SELECT count(*) FROM many JOIN big ON many.k = big.k";
        let plan = session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        collect(Arc::clone(&plan), session.ctx.task_ctx()).await.unwrap();
        assert_eq!(metric(&plan, "index_joins"), 1);
        lookups.push(metric(&plan, "gpu_lookups"));
        if lookups.last() == Some(&20_000) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!((lookups.first(), lookups.last()), (Some(&0), Some(&20_000)));
    // Few keys are the CPU's.
    run(&session.ctx, "SET overspill.indexes = auto").await.unwrap();
    let (_, plan) = answer(&session).await;
    assert_eq!(metric(&plan, "gpu_lookups"), 0);
    drop((plan, session));
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cpu_looks_up_what_finds_no_memory() {
    let emulated = start(64 * MIB);
    let expected = answer(&open(Engine::Stock, "", None, Memory::Ample).await).await.0;
    let session = open(Engine::Overspill, "radix_spline", Some(Device::with(16 * MIB)), Memory::Greedy(32 * MIB)).await;
    // The copy for the GPU would be in CPU memory, and needs 2,400,000 bytes.
    let pool = Arc::clone(&session.ctx.runtime_env().memory_pool);
    let others = MemoryConsumer::new("others").register(&pool);
    others.grow(32 * MIB - pool.reserved() - 2_300_000);
    let (found, plan) = answer(&session).await;
    assert_eq!(found.difference(&expected), None);
    assert_eq!((metric(&plan, "gpu_lookups"), metric(&plan, "index_joins")), (0, 1));
    assert!(metric(&plan, "gpu_refusals") > 0);
    drop((plan, others, pool, session));
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_lookups_are_right() {
    let emulated = start(64 * MIB);
    let expected = answer(&open(Engine::Stock, "", None, Memory::Ample).await).await.0;
    let mut limit = 17 * MIB;
    for kind in ["allocation", "registration", "copy", "launch", "synchronisation", "device_lost"] {
        let mut noticed = 0;
        for (place, index) in
            (1..).zip(["binary_search", "harmonia", "btree", "radix_spline"].into_iter().cycle().take(12))
        {
            // A device that was lost is another afterwards; so is one with another limit.
            limit += 1;
            let session = open(Engine::Overspill, index, Some(Device::with(limit)), Memory::Ample).await;
            // Opening the device is not what is tested.
            rows_of_nothing(&session).await;
            emulated.configure(&format!("fail={kind}:{place}"));
            let (found, plan) = answer(&session).await;
            emulated.configure(&format!("fail={kind}:0"));
            let case = format!("{index}, {kind} {place} failing");
            assert_eq!(found.difference(&expected), None, "{case}");
            let problems = metric(&plan, "gpu_failures") + metric(&plan, "gpu_refusals");
            assert!(problems > 0 || metric(&plan, "gpu_lookups") == 3000, "{case}");
            noticed += problems;
            drop((plan, session));
            let left = leftovers(&emulated);
            if kind == "device_lost" && problems > 0 {
                emulated.configure("reset=1;memory=67108864");
            } else {
                assert_eq!(left, None, "{case}");
            }
        }
        assert!(noticed > 0, "no {kind} to fail");
    }
}

/// Copies of indexes do not keep a lost device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_device_is_opened_again_and_indexes_are_copied_again() {
    let emulated = start(64 * MIB);
    let expected = answer(&open(Engine::Stock, "", None, Memory::Ample).await).await.0;
    // No other test has this limit, so none has lost its device.
    let session = open(Engine::Overspill, "harmonia", Some(Device::with(59 * MIB)), Memory::Ample).await;
    let lookups = async |case: &str| {
        let (found, plan) = answer(&session).await;
        assert_eq!(found.difference(&expected), None, "{case}");
        metric(&plan, "gpu_lookups")
    };
    assert_eq!(lookups("before").await, 3000);
    emulated.configure("fail=device_lost:2");
    assert_eq!(lookups("the loss").await, 0);
    assert_eq!(lookups("again").await, 3000);
    drop(session);
    assert_eq!(leftovers(&emulated), None);
}
