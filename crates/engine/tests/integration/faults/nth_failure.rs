//! The n-th reservation, write, read, … fails, for every n that a join gets to.

use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use tempfile::TempDir;

use super::files::{Fault, FaultyFiles};
use super::pool::FaultyPool;
use crate::harness::fixture::{JOINS, Size, register, settings};
use crate::harness::rows::Answer;
use crate::harness::run::{Run, is_broken};
use crate::harness::session::{Engine, Memory, Session, Settings};
use crate::harness::share::share_of;

/// Streams of the joins, and partitions of their tables.
const PARTITIONS: usize = 2;

/// One join in one partition mode, with its answer and the budget under which it goes through all that spilling has.
struct Subject {
    name: String,
    sql: &'static str,
    settings: Settings,
    budget: usize,
    expected: Answer,
}

impl Subject {
    /// Every join type in every mode that it has, or this run's share of them.
    async fn all() -> Vec<Self> {
        let modes = |(name, sql, can_be_partitioned)| {
            [false, true].into_iter().take(1 + usize::from(can_be_partitioned)).map(move |mode| (name, sql, mode))
        };
        let mut subjects = vec![];
        for (name, sql, is_partitioned) in share_of(JOINS.into_iter().flat_map(modes)) {
            subjects.push(Self::new(name, sql, is_partitioned).await);
        }
        subjects
    }

    async fn new(name: &str, sql: &'static str, partitioned: bool) -> Self {
        let settings = settings(PARTITIONS, partitioned);
        let name = format!("{name}, {}", if partitioned { "partitioned" } else { "collected" });
        let stock = Session::open(Engine::Stock, &settings, Memory::Ample).unwrap();
        let expected = run(&stock, sql).await.answer.unwrap();
        assert!(expected.rows() > 0, "{name}: the answer is empty");

        let ample = Session::open(Engine::Overspill, &settings, Memory::Ample).unwrap();
        let report = run(&ample, sql).await.report;
        assert_eq!(report.hybrid_joins, 1, "{name}: not on HybridJoinExec");
        let subject = Self { name, sql, settings, budget: report.floors[0], expected };

        // Faults in a join that has no need to spill would prove little.
        let session = Session::open(Engine::Overspill, &subject.settings, Memory::JoinLimit(subject.budget)).unwrap();
        let run = run(&session, sql).await;
        let answer = run.answer.unwrap_or_else(|error| panic!("{} at its floor: {error}", subject.name));
        assert_eq!(answer.difference(&subject.expected), None, "{} at its floor", subject.name);
        assert!(run.report.spilled(), "{}: did not spill at its floor: {:?}", subject.name, run.report);
        assert!(run.report.recursion_depth >= 2, "{}: did not recurse: {:?}", subject.name, run.report);
        assert!(run.report.chunk_passes >= 2, "{}: took no passes: {:?}", subject.name, run.report);
        subject
    }

    /// A run with a fault in it ends well, or in words; and it leaves nothing. Says which.
    async fn judge(&self, session: Session, what: &str) -> Outcome {
        let run = run(&session, self.sql).await;
        let outcome = match run.answer {
            Ok(answer) => {
                assert_eq!(answer.difference(&self.expected), None, "{} with {what}", self.name);
                Outcome::Answered
            }
            Err(error) => {
                assert!(!is_broken(&error), "{} with {what}: {error}", self.name);
                assert!(is_sentence(&error), "{} with {what}: the error {error:?} says too little", self.name);
                Outcome::Failed(error)
            }
        };
        assert_eq!(session.leftovers().await, None, "{} with {what}", self.name);
        outcome
    }
}

#[derive(Debug)]
enum Outcome {
    Answered,
    Failed(DataFusionError),
}

fn is_sentence(error: &DataFusionError) -> bool {
    error.strip_backtrace().split_whitespace().count() >= 4
}

async fn run(session: &Session, sql: &str) -> Run {
    register(&session.ctx, Size::SPILLING, PARTITIONS).unwrap();
    Run::of(&session.ctx, session.ctx.sql(sql).await).await
}

/// The numbers of the operations that fail: every one at first, then ever larger steps. Thousands of writes differ in
/// their place only.
fn places() -> impl Iterator<Item = usize> {
    let step = |place: &usize| Some(place + (place / 6).max(1));
    std::iter::successors(Some(1), step)
}

/// Fails one operation after the other in all joins until none is left to fail; gives the number of answers and errors.
async fn fail_each(fault: Option<Fault>) -> (usize, usize) {
    let (mut answered, mut failed) = (0, 0);
    for subject in Subject::all().await {
        let mut fired_once = false;
        for place in places() {
            let temp = TempDir::new().unwrap();
            let real = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![temp.path().into()]));
            let faulty_pool = Arc::new(FaultyPool::new(if fault.is_none() { place } else { usize::MAX }));
            let pool: Arc<dyn MemoryPool> = match fault {
                None => Arc::clone(&faulty_pool) as _,
                Some(_) => Arc::new(UnboundedMemoryPool::default()),
            };
            let files =
                fault.map(|fault| Arc::new(FaultyFiles::new(Arc::new(real.clone().build().unwrap()), fault, place)));
            let disk = match &files {
                Some(files) => DiskManagerBuilder::default().with_temp_file_factory(Arc::clone(files) as _),
                None => real,
            };
            let session =
                Session::open_with(Engine::Overspill, &subject.settings, pool, subject.budget, disk, temp).unwrap();
            let what = format!("{} {place} failing", fault.map_or("reservation".into(), |fault| format!("{fault:?}")));
            let outcome = subject.judge(session, &what).await;
            match &outcome {
                Outcome::Answered => answered += 1,
                Outcome::Failed(_) => failed += 1,
            }
            let fired = files.map_or(faulty_pool.fired(), |files| files.fired());
            if !fired {
                if let Outcome::Failed(error) = outcome {
                    panic!("{} failed without a fault, {what} not having come: {error}", subject.name);
                }
                break;
            }
            // Spilling can make up for a refused reservation; nothing can for a file that is not written or read.
            if fault.is_some() {
                assert!(matches!(outcome, Outcome::Failed(_)), "{} with {what}: answered all the same", subject.name);
            }
            fired_once = true;
        }
        assert!(fired_once, "{}: no operation to fail with {fault:?}", subject.name);
    }
    println!("{fault:?}: {answered} answers, {failed} errors");
    (answered, failed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservations() {
    let (answered, failed) = fail_each(None).await;
    assert!(answered > failed, "joins whose reservation is refused once should mostly spill and go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn created_files() {
    fail_each(Some(Fault::Create)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes() {
    fail_each(Some(Fault::Write)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk() {
    fail_each(Some(Fault::DiskFull)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_files() {
    fail_each(Some(Fault::Finish)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opened_files() {
    fail_each(Some(Fault::Open)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads() {
    fail_each(Some(Fault::Read)).await;
}
