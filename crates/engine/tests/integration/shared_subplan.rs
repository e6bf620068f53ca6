//! Equal parts of a query run once: which are shared, and that answers, errors and memory are as without that.
//!
//! - `OVERSPILL_SHARED_SUBPLAN_QUERIES`: how many random queries (60).
//! - `OVERSPILL_FUZZ_SEED`: where the sequence of cases starts.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, resources_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{MemoryPool, MemoryReservation, UnboundedMemoryPool};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect};
use futures::StreamExt;
use overspill::SharedSubplanExec;
use overspill::memory::HeadroomPool;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;

use crate::faults::files::{Fault, FaultyFiles};
use crate::harness::plan::total;
use crate::harness::rows::{Answer, write_parquet_file};
use crate::harness::run::{Run, TIME_LIMIT, is_broken, is_out_of_memory};
use crate::harness::session::{Engine, Memory, Session, Settings};

/// `facts` has nulls, `dims` a row for some of its keys, and `none` no row.
const TABLES: [&str; 3] = [
    "CREATE TABLE facts AS SELECT value AS id, CASE WHEN value % 11 = 10 THEN NULL ELSE value % 40 END AS k, value % 7 AS g, \
     CASE WHEN value % 13 = 12 THEN NULL ELSE value % 101 END AS v FROM generate_series(0, 2999)",
    "CREATE TABLE dims AS SELECT value * 2 AS k, value AS w FROM generate_series(0, 14)",
    "CREATE TABLE none AS SELECT value AS id, value AS k, value AS g, value AS v FROM generate_series(0, 3) WHERE value < 0",
];

/// A table of wide rows.
const TEXTS: &str = "CREATE TABLE texts AS SELECT value AS id, value % 1000 AS k, repeat('text ' || value, 20) AS t \
                     FROM generate_series(0, 29999)";

async fn filled(session: Session, is_on: bool) -> Session {
    for table in TABLES {
        run(&session, table).await.answer.unwrap();
    }
    run(&session, &format!("SET overspill.shared_subplans = {is_on}")).await.answer.unwrap();
    session
}

async fn session(is_on: bool) -> Session {
    filled(Session::open(Engine::Overspill, &Settings::default(), Memory::Ample).unwrap(), is_on).await
}

async fn run(session: &Session, sql: &str) -> Run {
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

async fn plan(session: &Session, sql: &str) -> Arc<dyn ExecutionPlan> {
    session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
}

/// All nodes of a plan for which `is` holds.
fn nodes(plan: &Arc<dyn ExecutionPlan>, is: &dyn Fn(&Arc<dyn ExecutionPlan>) -> bool) -> Vec<Arc<dyn ExecutionPlan>> {
    let below = plan.children().into_iter().flat_map(|child| nodes(child, is));
    is(plan).then(|| Arc::clone(plan)).into_iter().chain(below).collect()
}

fn readers(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    nodes(plan, &|node| node.is::<SharedSubplanExec>())
}

/// The sum of a metric over the readers of a plan.
fn of_readers(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    readers(plan).iter().map(|reader| total(reader, name)).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_view_of_tpch_15_reads_its_table_once() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("lines.parquet");
    let source = session(false).await;
    let lines = run(&source, "SELECT id % 100 AS supplier, v * 3 AS price FROM facts").await.answer.unwrap();
    write_parquet_file(&path, &lines.schema, &lines.batches).unwrap();
    let sql = "WITH revenue AS (SELECT supplier, sum(price) AS total FROM lines WHERE price > 3 GROUP BY supplier) \
               SELECT s, total FROM suppliers JOIN revenue ON s = supplier WHERE total = (SELECT max(total) FROM revenue) ORDER BY s";
    let mut rows_read = vec![];
    let mut answers = vec![];
    for is_on in [true, false] {
        let session = session(is_on).await;
        let table = format!("CREATE EXTERNAL TABLE lines STORED AS PARQUET LOCATION '{}'", path.display());
        run(&session, &table).await.answer.unwrap();
        let suppliers = "CREATE TABLE suppliers AS SELECT value AS s FROM generate_series(0, 99)";
        run(&session, suppliers).await.answer.unwrap();
        let plan = plan(&session, sql).await;
        let batches = collect(Arc::clone(&plan), session.ctx.task_ctx()).await.unwrap();
        let scans =
            nodes(&plan, &|node| node.name() == "DataSourceExec" && format!("{node:?}").contains("lines.parquet"));
        rows_read.push(scans.iter().map(|scan| total(scan, "output_rows")).sum::<usize>());
        assert_eq!(readers(&plan).len(), if is_on { 2 } else { 0 });
        answers.push(Answer::new(plan.schema(), batches).unwrap());
        drop(plan);
        assert_eq!(session.leftovers().await, None);
    }
    assert!(answers[0].rows() > 0);
    assert_eq!(answers[0].difference(&answers[1]), None);
    assert!(rows_read[0] > 0 && rows_read[1] == 2 * rows_read[0], "{rows_read:?}");
}

const TOTALS: &str = "WITH c AS (SELECT g, count(*) AS n, sum(v) AS s FROM facts GROUP BY g)";

/// Queries with the number of readers in their plans.
const SHARED: [(&str, usize); 17] = [
    ("SELECT * FROM c a JOIN c b ON a.n = b.n AND a.s = b.s", 2),
    ("SELECT * FROM c UNION ALL SELECT * FROM c UNION ALL SELECT * FROM c", 3),
    (
        "SELECT a.s, b.s, d.s, e.s FROM c a LEFT JOIN c b ON a.g = b.n JOIN c d ON a.g = d.g AND a.n = d.n FULL JOIN c e ON e.g = a.n AND e.n = a.g",
        4,
    ),
    ("SELECT g, n, s FROM c WHERE s > (SELECT avg(s + n) FROM c) AND n > (SELECT min(s - n) FROM c)", 3),
    ("SELECT g, n, s FROM c WHERE s IN (SELECT s + n - n FROM c)", 2),
    ("SELECT g, n, s FROM c WHERE NOT EXISTS (SELECT 1 FROM c b WHERE b.s = c.n AND b.n > 0)", 2),
    // A part of a shared part that occurs elsewhere is shared as well.
    (
        ", d AS (SELECT n, sum(s) AS s, max(g) AS g FROM c GROUP BY n) SELECT * FROM d UNION ALL SELECT * FROM d UNION ALL SELECT n, s, g FROM c",
        4,
    ),
    ("SELECT DISTINCT g, n, s FROM c UNION ALL SELECT DISTINCT g, n, s FROM c", 2),
    // Two parts.
    (
        ", d AS (SELECT DISTINCT k FROM dims) SELECT count(*) FROM c a, c b, d e, d f WHERE a.s = b.s AND a.n = b.n AND e.k = f.k + 2",
        4,
    ),
    // Of an empty input, and with a subquery of its own.
    (", d AS (SELECT k, sum(v) AS s FROM none GROUP BY k) SELECT * FROM d UNION ALL SELECT * FROM d", 2),
    (
        ", d AS (SELECT k, sum(v) AS s FROM facts GROUP BY k HAVING sum(v) > (SELECT avg(v) FROM facts)) SELECT * FROM d UNION ALL SELECT * FROM d",
        2,
    ),
    (
        ", d AS (SELECT k, sum(v) OVER (PARTITION BY k ORDER BY id) AS s FROM facts) SELECT * FROM d UNION ALL SELECT * FROM d",
        2,
    ),
    (", d AS (SELECT id, k FROM facts ORDER BY id DESC LIMIT 17) SELECT * FROM d UNION ALL SELECT * FROM d", 2),
    // Common subexpressions and joins that the optimizer names apart in each copy.
    (
        ", d AS (SELECT g, sum(coalesce(v * k, 0)) AS s, max(coalesce(v * k, 1)) AS m FROM facts GROUP BY g) SELECT * FROM d UNION ALL SELECT * FROM d",
        2,
    ),
    (
        ", d AS (SELECT g, k, sum(coalesce(v * id, 0)) AS s FROM facts GROUP BY g, k), e AS (SELECT g, sum(s) AS s FROM d GROUP BY g) \
         SELECT * FROM d UNION ALL SELECT g, NULL, s FROM e UNION ALL SELECT g + 1, 0, s FROM e",
        4,
    ),
    (
        ", d AS (SELECT g, count(*) AS n FROM facts WHERE EXISTS (SELECT 1 FROM dims WHERE dims.k = facts.k) GROUP BY g) SELECT * FROM d UNION ALL SELECT * FROM d",
        2,
    ),
    (
        ", d AS (SELECT g, s FROM c WHERE s IN (SELECT v * 1000 FROM facts)) SELECT sum(a.s), count(b.s) FROM d a, d b WHERE a.g < b.g",
        2,
    ),
];

/// Queries in which nothing is shared.
const NOT_SHARED: [&str; 11] = [
    // Nothing but reading and joining.
    "WITH c AS (SELECT k, v FROM facts WHERE v > 3) SELECT count(*) FROM c a JOIN c b ON a.k = b.v",
    "WITH c AS (SELECT facts.k, w FROM facts JOIN dims ON facts.k = dims.k) SELECT * FROM c UNION ALL SELECT * FROM c",
    // Volatile functions.
    "WITH c AS (SELECT g, sum(v + random()) >= 0 AS s FROM facts GROUP BY g) SELECT * FROM c UNION ALL SELECT * FROM c",
    "WITH c AS (SELECT DISTINCT g FROM facts WHERE random() < 2) SELECT * FROM c UNION ALL SELECT * FROM c",
    // Rows that may be any.
    "WITH c AS (SELECT count(*) AS n FROM (SELECT * FROM facts LIMIT 10) AS f) SELECT * FROM c UNION ALL SELECT * FROM c",
    // Filters and columns of one reader alone.
    "WITH c AS (SELECT g, sum(v) AS s FROM facts GROUP BY g) SELECT * FROM c WHERE g = 1 UNION ALL SELECT * FROM c WHERE g = 2",
    "WITH c AS (SELECT g, sum(v) AS s, max(v) AS m FROM facts GROUP BY g) SELECT g, s FROM c UNION ALL SELECT g, m FROM c",
    // Common subexpressions, which have generated names, of other columns.
    "SELECT g, sum(coalesce(v * k, 0)) AS s FROM facts GROUP BY g UNION ALL SELECT g, sum(coalesce(v * id, 0)) AS s FROM facts GROUP BY g",
    // Other tables.
    "SELECT k, count(*) FROM facts GROUP BY k UNION ALL SELECT k, count(*) FROM none GROUP BY k",
    // What depends on rows around it.
    "SELECT w, (SELECT count(*) FROM facts WHERE facts.k = dims.k) FROM dims",
    // Recursive queries.
    "WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c WHERE n < 5) SELECT count(*) FROM c a JOIN c b ON a.n = b.n",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_that_are_work_are_shared() {
    let (on, off) = (session(true).await, session(false).await);
    for (sql, count) in SHARED {
        let sql = format!("{TOTALS} {sql}");
        let found = run(&on, &sql).await;
        assert_eq!(found.plan.matches("SharedSubplanExec").count(), count, "{sql}\n{}", found.plan);
        let expected = run(&off, &sql).await;
        assert!(!expected.plan.contains("SharedSubplanExec"), "{sql}");
        assert_eq!(found.answer.unwrap().difference(&expected.answer.unwrap()), None, "{sql}\n{}", found.plan);
        assert_eq!(on.leftovers().await, None, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_parts_are_not() {
    let (on, off) = (session(true).await, session(false).await);
    for sql in NOT_SHARED {
        let (found, expected) = (run(&on, sql).await, run(&off, sql).await);
        assert!(!found.plan.contains("SharedSubplanExec"), "{sql}\n{}", found.plan);
        assert_eq!(found.plan, expected.plan, "{sql}");
        assert_eq!(found.answer.unwrap().difference(&expected.answer.unwrap()), None, "{sql}");
    }
    run(&on, "SET overspill.enabled = false").await.answer.unwrap();
    let found = run(&on, &format!("{TOTALS} SELECT * FROM c UNION ALL SELECT * FROM c")).await;
    assert!(!found.plan.contains("SharedSubplanExec"), "{}", found.plan);
}

/// A query within statements that explain, analyze and write it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_around_a_query_show_it() {
    let (on, off) = (session(true).await, session(false).await);
    let query = format!("{TOTALS} SELECT * FROM c UNION ALL SELECT * FROM c");
    let text = async |session: &Session, sql: String| {
        let rows = run(session, &sql).await.answer.unwrap();
        arrow::util::pretty::pretty_format_batches(&rows.batches).unwrap().to_string()
    };
    let explained = text(&on, format!("EXPLAIN {query}")).await;
    assert_eq!(explained.matches("SharedSubplanExec: id=1, readers=2").count(), 2, "{explained}");
    assert_eq!(explained.matches("DataSourceExec").count(), 1, "{explained}");
    // The logical plan is that of the optimizer.
    assert_eq!(explained.matches("TableScan: facts").count(), 2, "{explained}");
    let tree = text(&on, format!("EXPLAIN FORMAT TREE {query}")).await;
    assert_eq!(tree.matches("SharedSubplanExec").count(), 2, "{tree}");
    let graph = text(&on, format!("EXPLAIN FORMAT GRAPHVIZ {query}")).await;
    assert_eq!(graph, text(&off, format!("EXPLAIN FORMAT GRAPHVIZ {query}")).await);
    let analyzed = text(&on, format!("EXPLAIN ANALYZE {query}")).await;
    let has_metrics =
        analyzed.contains("peak_mem_used") && analyzed.contains("spilled_bytes") && analyzed.contains("output_rows=7");
    assert!(has_metrics, "{analyzed}");
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("rows.parquet");
    let copied = run(&on, &format!("COPY ({query}) TO '{}'", path.display())).await;
    assert_eq!(copied.plan.matches("SharedSubplanExec").count(), 2, "{}", copied.plan);
    copied.answer.unwrap();
    run(&on, "CREATE TABLE written (g BIGINT, n BIGINT, s BIGINT)").await.answer.unwrap();
    let inserted = run(&on, &format!("INSERT INTO written {query}")).await;
    assert_eq!(inserted.plan.matches("SharedSubplanExec").count(), 2, "{}", inserted.plan);
    inserted.answer.unwrap();
    let written = run(&on, "SELECT count(*) FROM written").await.answer.unwrap();
    let expected = run(&off, "SELECT CAST(14 AS BIGINT) AS \"count(*)\"").await.answer.unwrap();
    assert_eq!(written.difference(&expected), None);
}

/// Two readers of 25,000 wide rows.
const WIDE: &str =
    "WITH top AS (SELECT id, k, t FROM texts ORDER BY id LIMIT 25000) SELECT * FROM top UNION ALL SELECT * FROM top";

/// A session with the table of wide rows. In little memory the rows of [`WIDE`] go to disk.
async fn session_of_texts(is_on: bool, is_limited: bool) -> Session {
    let settings = Settings::default();
    let opened = if is_limited {
        Session::open_over(Engine::Overspill, &settings, Arc::new(HeadroomPool::new(LITTLE)), 0)
    } else {
        Session::open(Engine::Overspill, &settings, Memory::Ample)
    };
    let session = filled(opened.unwrap(), is_on).await;
    run(&session, TEXTS).await.answer.unwrap();
    session
}

/// Less than wide rows take, and more than it takes to sort them.
const LITTLE: usize = 12 << 20;

async fn drain(stream: &mut SendableRecordBatchStream) -> Result<Vec<RecordBatch>> {
    let mut batches = vec![];
    while let Some(batch) = stream.next().await {
        batches.push(batch?);
    }
    Ok(batches)
}

fn start(session: &Session, readers: &[Arc<dyn ExecutionPlan>]) -> Vec<SendableRecordBatchStream> {
    let context = session.ctx.task_ctx();
    readers.iter().map(|reader| reader.execute(0, Arc::clone(&context)).unwrap()).collect()
}

/// Says what readers have left in memory and on disk, if it does not go in a while.
async fn kept(session: &Session) -> Option<String> {
    let mut complaint = None;
    for _ in 0..200 {
        let mut held = session.pool.holders();
        held.retain(|(name, _)| name.starts_with("SharedSubplan"));
        let files = session.files_left();
        if held.is_empty() && files.is_empty() {
            return None;
        }
        complaint = Some(format!("left behind: {held:?}, files {files:?}"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    complaint
}

/// The plan of [`WIDE`], its readers, and the rows that each returns.
async fn wide(session: &Session) -> (Arc<dyn ExecutionPlan>, Vec<Arc<dyn ExecutionPlan>>, Answer) {
    let off = session_of_texts(false, false).await;
    let expected = run(&off, "SELECT id, k, t FROM texts ORDER BY id LIMIT 25000").await.answer.unwrap();
    let plan = plan(session, WIDE).await;
    let readers = readers(&plan);
    assert_eq!(readers.len(), 2);
    for reader in &readers {
        assert_eq!(reader.output_partitioning().partition_count(), 1);
    }
    (plan, readers, expected)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_are_polled_in_any_order() {
    for is_limited in [false, true] {
        let session = session_of_texts(true, is_limited).await;
        for order in ["one after the other", "in turn", "the second first", "one ahead"] {
            let (plan, readers, expected) = wide(&session).await;
            let mut streams = start(&session, &readers);
            let mut batches = vec![vec![], vec![]];
            match order {
                "one after the other" => {}
                "the second first" => batches[1].extend(drain(&mut streams[1]).await.unwrap()),
                "in turn" => loop {
                    let mut has_ended = false;
                    for (stream, batches) in streams.iter_mut().zip(&mut batches) {
                        match stream.next().await {
                            Some(batch) => batches.push(batch.unwrap()),
                            None => has_ended = true,
                        }
                    }
                    if has_ended {
                        break;
                    }
                },
                _ => {
                    for _ in 0..10 {
                        batches[0].push(streams[0].next().await.unwrap().unwrap());
                    }
                    for _ in 0..3 {
                        batches[1].push(streams[1].next().await.unwrap().unwrap());
                    }
                }
            }
            for (stream, batches) in streams.iter_mut().zip(&mut batches) {
                batches.extend(drain(stream).await.unwrap());
            }
            for batches in batches {
                let found = Answer::new(plan.schema(), batches).unwrap();
                assert_eq!(found.difference(&expected), None, "{order}");
            }
            if is_limited && order != "in turn" {
                assert!(of_readers(&plan, "spilled_bytes") > 0, "{order}");
            }
            if !is_limited {
                assert_eq!(of_readers(&plan, "spilled_bytes"), 0, "{order}");
            }
            // The rows are gone, though the plan is still there.
            drop(streams);
            assert_eq!(kept(&session).await, None, "{order}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_is_dropped_on_its_way() {
    for is_limited in [false, true] {
        let session = session_of_texts(true, is_limited).await;
        for (dropped, polls) in [(0, 0), (0, 5), (1, 1), (1, 12)] {
            let (plan, readers, expected) = wide(&session).await;
            let mut streams = start(&session, &readers);
            let mut other = streams.remove(1 - dropped);
            let mut dropped = streams.remove(0);
            for _ in 0..polls {
                dropped.next().await.unwrap().unwrap();
            }
            let mut batches = vec![other.next().await.unwrap().unwrap()];
            drop(dropped);
            batches.extend(drain(&mut other).await.unwrap());
            assert_eq!(Answer::new(plan.schema(), batches).unwrap().difference(&expected), None);
            drop(other);
            assert_eq!(kept(&session).await, None);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_drops_its_reader_early() {
    let on = session(true).await;
    let sql = "WITH c AS (SELECT id, max(k) AS k, max(v) AS v FROM facts GROUP BY id) \
               (SELECT id, k, v FROM c LIMIT 2) UNION ALL SELECT id, k, v FROM c";
    let found = run(&on, sql).await;
    assert_eq!(found.plan.matches("SharedSubplanExec: id=1, readers=2").count(), 2, "{}", found.plan);
    assert_eq!(found.answer.unwrap().rows(), 3002);
    assert_eq!(on.leftovers().await, None);
}

/// A reader that has polled the input and is polled no more holds up no other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_waits_holds_up_no_other() {
    let session = session_of_texts(true, false).await;
    let (plan, readers, expected) = wide(&session).await;
    let mut streams = start(&session, &readers);
    let mut other = streams.remove(1);
    let _abandoned = futures::poll!(streams[0].next());
    let batches = tokio::time::timeout(TIME_LIMIT, drain(&mut other)).await.unwrap().unwrap();
    assert_eq!(Answer::new(plan.schema(), batches).unwrap().difference(&expected), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_queries_leave_nothing() {
    for is_limited in [false, true] {
        let session = session_of_texts(true, is_limited).await;
        for polls in [0, 1, 20] {
            let (plan, readers, _) = wide(&session).await;
            let mut streams = start(&session, &readers[..1]);
            for _ in 0..polls {
                streams[0].next().await.unwrap().unwrap();
            }
            // The other reader was never started.
            drop((streams, readers, plan));
            assert_eq!(session.leftovers().await, None, "{polls}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_the_input_goes_to_every_reader() {
    let session = session_of_texts(true, false).await;
    // Fails at the row 20,000.
    let sql = "WITH top AS (SELECT id, 10 / (id - 20000) AS q FROM (SELECT id, t FROM texts ORDER BY id LIMIT 25000)) \
               SELECT * FROM top UNION ALL SELECT * FROM top";
    let error = run(&session, sql).await.answer.err().unwrap();
    assert!(error.to_string().contains("ivide by zero") && !is_broken(&error), "{error}");
    assert_eq!(session.leftovers().await, None);
    let plan = plan(&session, sql).await;
    let readers = readers(&plan);
    assert_eq!(readers.len(), 2);
    for reader in readers {
        let mut errors = vec![];
        for partition in 0..reader.output_partitioning().partition_count() {
            let mut stream = reader.execute(partition, session.ctx.task_ctx()).unwrap();
            errors.extend(drain(&mut stream).await.err());
        }
        let is_divided = |error: &DataFusionError| error.to_string().contains("ivide by zero");
        assert!(!errors.is_empty() && errors.iter().all(is_divided), "{errors:?}");
    }
}

/// The second reader is polled when the first has been read, as the sides of a hash join are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn little_memory_moves_rows_to_disk() {
    let off = session_of_texts(false, false).await;
    let top = "WITH top AS (SELECT id, k, t FROM texts ORDER BY id LIMIT 25000)";
    for sql in [
        "SELECT count(*), sum(id + k + length(t)) FROM top WHERE id > (SELECT min(id + k + length(t)) FROM top)",
        "SELECT count(*), sum(a.k + b.id), max(a.t), max(b.t) FROM top a JOIN top b ON a.id = b.k",
    ] {
        let sql = format!("{top} {sql}");
        let expected = run(&off, &sql).await.answer.unwrap();
        let little = session_of_texts(true, true).await;
        let plan = plan(&little, &sql).await;
        let batches = collect(Arc::clone(&plan), little.ctx.task_ctx()).await.unwrap();
        assert_eq!(Answer::new(plan.schema(), batches).unwrap().difference(&expected), None, "{sql}");
        assert_eq!(readers(&plan).len(), 2, "{sql}");
        assert!(of_readers(&plan, "spilled_bytes") > 0 && of_readers(&plan, "spill_count") > 0, "{sql}");
        assert!(of_readers(&plan, "peak_mem_used") <= LITTLE / 5, "{sql}");
        drop(plan);
        assert_eq!(little.leftovers().await, None, "{sql}");
    }
}

/// Refuses memory to shared subplans.
#[derive(Debug, Default)]
struct RefusingPool(UnboundedMemoryPool);

impl Display for RefusingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refusing")
    }
}

impl MemoryPool for RefusingPool {
    fn name(&self) -> &str {
        "refusing"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.0.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.0.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if reservation.consumer().name().starts_with("SharedSubplan") {
            return Err(resources_datafusion_err!("the pool refuses this consumer, for the test"));
        }
        self.0.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.0.reserved()
    }
}

/// One reader is read after the other, so that all rows are written and read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_files_are_errors_and_leave_nothing() {
    let sql = "WITH top AS (SELECT id, k, t FROM texts ORDER BY id LIMIT 25000) \
               SELECT count(*), sum(id + k + length(t)) FROM top WHERE id > (SELECT min(id + k + length(t)) FROM top)";
    for (fault, place) in [
        (Fault::Create, 1),
        (Fault::Write, 1),
        (Fault::Write, 20),
        (Fault::DiskFull, 2),
        (Fault::Finish, 1),
        (Fault::Open, 1),
        (Fault::Read, 1),
        (Fault::Read, 9),
    ] {
        let temp = TempDir::new().unwrap();
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![temp.path().into()]));
        let files = Arc::new(FaultyFiles::new(Arc::new(disk.build().unwrap()), fault, place));
        let disk = DiskManagerBuilder::default().with_temp_file_factory(Arc::clone(&files) as _);
        let pool = Arc::new(RefusingPool::default());
        let session = Session::open_with(Engine::Overspill, &Settings::default(), pool, 0, disk, temp).unwrap();
        run(&session, TEXTS).await.answer.unwrap();
        let found = run(&session, sql).await;
        assert_eq!(found.plan.matches("SharedSubplanExec").count(), 2, "{}", found.plan);
        let error = found.answer.err().unwrap_or_else(|| panic!("{fault:?} {place}: answered all the same"));
        assert!(files.fired() && !is_broken(&error), "{fault:?} {place}: {error}");
        assert_eq!(session.leftovers().await, None, "{fault:?} {place}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_run_again() {
    let (on, off) = (session(true).await, session(false).await);
    for (sql, _) in SHARED {
        let sql = format!("{TOTALS} {sql}");
        let expected = run(&off, &sql).await.answer.unwrap();
        let plan = plan(&on, &sql).await;
        let count = readers(&plan).len();
        let mut found = vec![];
        // DataFusion's node for scalar subqueries shares what they return with its copies.
        if nodes(&plan, &|node| node.name() == "ScalarSubqueryExec").is_empty() {
            let copy = reset_plan_states(Arc::clone(&plan)).unwrap();
            let (first, second) = tokio::join!(answer(&on, &plan), answer(&on, &copy));
            found.extend([first, second]);
        } else {
            found.push(answer(&on, &plan).await);
        }
        let third = reset_plan_states(plan).unwrap();
        found.push(answer(&on, &third).await);
        assert_eq!(readers(&third).len(), count, "{sql}");
        for found in found {
            assert_eq!(found.unwrap().difference(&expected), None, "{sql}");
        }
    }
    // Readers that are reset share a run: the input returns its rows once.
    let sql = format!("{TOTALS} SELECT * FROM c UNION ALL SELECT * FROM c");
    let plan = reset_plan_states(plan(&on, &sql).await).unwrap();
    assert_eq!(answer(&on, &plan).await.unwrap().rows(), 14);
    let inputs = nodes(&plan, &|node| node.is::<SharedSubplanExec>() && !node.children().is_empty());
    assert_eq!(inputs.len(), 1);
    assert_eq!(total(inputs[0].children()[0], "output_rows"), 7);
}

async fn answer(session: &Session, plan: &Arc<dyn ExecutionPlan>) -> Result<Answer> {
    Answer::new(plan.schema(), collect(Arc::clone(plan), session.ctx.task_ctx()).await?)
}

/// A plan without a part that runs once only, such as a repartition, may be executed again as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_run_again_without_a_reset() {
    let session = session_of_texts(true, false).await;
    let (plan, readers, expected) = wide(&session).await;
    for _ in 0..2 {
        for mut stream in start(&session, &readers) {
            let found = Answer::new(plan.schema(), drain(&mut stream).await.unwrap()).unwrap();
            assert_eq!(found.difference(&expected), None);
        }
    }
    // While it runs, rows of two executions could be mixed.
    let _first = start(&session, &readers[..1]);
    let error = readers[0].execute(0, session.ctx.task_ctx()).err().unwrap();
    assert!(error.to_string().contains("was executed again while it runs"), "{error}");
}

/// What a random query has in its WITH: columns `k`, `n` and `s`.
const BODIES: [&str; 9] = [
    "SELECT g AS k, count(*) AS n, sum(v) AS s FROM facts GROUP BY g",
    "SELECT k, max(v) AS n, sum(id) AS s FROM facts WHERE g < 5 GROUP BY k",
    "SELECT DISTINCT k, g AS n, v % 5 AS s FROM facts",
    "SELECT k, row_number() OVER (PARTITION BY g ORDER BY id) AS n, sum(v) OVER (PARTITION BY k ORDER BY id) AS s FROM facts WHERE id % 5 = 0",
    "SELECT k, g AS n, id AS s FROM facts ORDER BY v DESC, id LIMIT 60",
    "SELECT d.w AS k, count(*) AS n, sum(f.v) AS s FROM facts f JOIN dims d ON f.k = d.k GROUP BY d.w",
    "SELECT k, count(*) AS n, sum(v) AS s FROM none GROUP BY k",
    "SELECT k, count(*) AS n, sum(v) AS s FROM facts GROUP BY k HAVING sum(v) > (SELECT avg(v) * 60 FROM facts)",
    "SELECT k, count(*) AS n, sum(v) AS s FROM facts WHERE k IN (SELECT w FROM dims) GROUP BY k",
];

/// How it is read, with `R1` to `R4` for the tables of the WITH.
const SHAPES: [&str; 12] = [
    "SELECT count(*), sum(a.n + a.s), sum(b.n * b.s) FROM R1 a JOIN R2 b ON a.k = b.k",
    "SELECT count(*), sum(a.n + a.s), sum(b.n * b.s), max(d.s) FROM R1 a LEFT JOIN R2 b ON a.k = b.n FULL JOIN R3 d ON d.n = a.k AND d.k > 0",
    "SELECT k, n, s FROM R1 UNION ALL SELECT n, s, k FROM R2 UNION ALL SELECT s, k, n FROM R3",
    "SELECT k, n, s FROM R1 UNION SELECT k, n, s FROM R2",
    "SELECT k, n, s FROM R1 WHERE s = (SELECT max(s + n * 0 + k * 0) FROM R2)",
    "SELECT k, n, s FROM R1 WHERE s + n > (SELECT avg(s + n + k) FROM R2) AND n < (SELECT sum(s + n + k) FROM R3)",
    "SELECT k, n, s FROM R1 WHERE k IN (SELECT n FROM R2 WHERE s + k > 0) AND n NOT IN (SELECT s FROM R3 WHERE s + k + n > 9)",
    "SELECT k, n, s FROM R1 a WHERE NOT EXISTS (SELECT 1 FROM R2 b WHERE b.n = a.k AND b.s <> a.s) OR EXISTS (SELECT 1 FROM R3 d WHERE d.k = a.s + d.n)",
    "SELECT count(*), sum(a.n), sum(b.s) FROM R1 a JOIN R2 b ON a.k = b.k AND a.n = b.n JOIN R3 d ON a.k = d.k AND d.s >= a.s JOIN R4 e ON e.k = b.n",
    "SELECT count(*) FROM (SELECT k, n, s FROM R1 LIMIT 3) a, (SELECT count(*) AS x, sum(k + n + s) AS y FROM R2) b",
    "SELECT a.k, count(*), sum(b.s) FROM R1 a RIGHT JOIN R2 b ON a.k < b.n AND a.s > b.k GROUP BY a.k",
    "SELECT k, n, s FROM R1 INTERSECT SELECT k, n, s FROM R2 EXCEPT SELECT n, k, s FROM R3",
];

fn random_query(rng: &mut impl Rng) -> String {
    let body = BODIES.choose(rng).unwrap();
    let second = match rng.random_range(0..4) {
        0 => "SELECT n AS k, sum(s) AS n, count(*) AS s FROM c GROUP BY n",
        1 => "SELECT k, n + 1 AS n, s FROM c WHERE n > 2",
        2 => "SELECT a.k, a.n, b.s FROM c a JOIN c b ON a.k = b.k AND a.n = b.n AND a.s = b.s",
        _ => BODIES.choose(rng).unwrap(),
    };
    let is_second_read = rng.random_bool(0.4);
    let mut query = (*SHAPES.choose(rng).unwrap()).to_owned();
    for reader in ["R1", "R2", "R3", "R4"] {
        let name = if is_second_read && rng.random_bool(0.6) { "d" } else { "c" };
        query = query.replace(reader, name);
    }
    format!("WITH c AS ({body}), d AS ({second}) {query}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_queries_give_the_same_rows() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let queries = number("OVERSPILL_SHARED_SUBPLAN_QUERIES").unwrap_or(60);
    let first = number("OVERSPILL_FUZZ_SEED").unwrap_or(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let (mut shared, mut starved) = (0, 0);
    for case in 0..queries {
        let rng = &mut StdRng::seed_from_u64(first.wrapping_add(case));
        let settings = Settings { batch_size: *[16, 100, 1024].choose(rng).unwrap(), ..Settings::random(rng, 3000) };
        let sql = random_query(rng);
        let opened =
            async |memory, is_on| filled(Session::open(Engine::Overspill, &settings, memory).unwrap(), is_on).await;
        let off = opened(Memory::Ample, false).await;
        let expected = match run(&off, &sql).await.answer {
            Ok(expected) => expected,
            Err(error) => panic!("case {case}: {error}\n{sql}"),
        };
        let little = *[Memory::Greedy(2 << 20), Memory::Fair(4 << 20)].choose(rng).unwrap();
        for memory in [Memory::Ample, little] {
            let on = opened(memory, true).await;
            let found = run(&on, &sql).await;
            shared += u64::from(memory == Memory::Ample && found.plan.contains("SharedSubplanExec"));
            match &found.answer {
                Ok(answer) => assert_eq!(answer.difference(&expected), None, "case {case}\n{sql}\n{}", found.plan),
                Err(error) if memory != Memory::Ample && is_out_of_memory(error) => starved += 1,
                Err(error) => panic!("case {case}, {memory:?}: {error}\n{sql}\n{}", found.plan),
            }
            assert_eq!(on.leftovers().await, None, "case {case}\n{sql}");
        }
    }
    println!("{queries} queries, {shared} with shared parts, {starved} without enough memory");
    assert!(shared * 2 > queries, "{shared} of {queries}");
    assert!(starved * 4 < queries, "{starved} of {queries}");
}
