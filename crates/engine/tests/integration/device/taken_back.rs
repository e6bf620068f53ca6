//! A query's share of the device is taken back at any time: the CPU joins the rows that are left, and no others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use overspill::Strategy;
use overspill_gpu_join::DeviceShare;

use super::{MIB, STRATEGIES, leftovers, start};
use crate::harness::fixture::{JOINS, Size, register_with, settings};
use crate::harness::rows::Answer;
use crate::harness::run::Run;
use crate::harness::session::{Device, Engine, Memory, Session, Settings};
use crate::harness::share::share_of;

/// Joins whose kernels return pairs.
const SMALL: Size = Size { build: 3_000, probe: 4_000 };

/// Enough for several chunks and units in little memory.
const LARGE: Size = Size { build: 120_000, probe: 200_000 };

/// Queries over large tables, each with sums over one join. Kernels aggregate the pairs of the first.
const SUMS: [&str; 4] = [
    "SELECT count(*), sum(a_id), sum(b_id) FROM a JOIN b ON a_k = b_k",
    "SELECT count(*), sum(a_id), sum(b_id), sum(a_id * b_id % 97) FROM a FULL JOIN b ON a_k = b_k",
    "SELECT count(*), sum(b_id) FROM a RIGHT SEMI JOIN b ON a_k = b_k AND a_id % 5 <> b_id % 5",
    "SELECT count(*), sum(a_id) FROM a LEFT ANTI JOIN b ON a_k = b_k",
];

const FILTERED: &str = "SELECT count(*), sum(b_id), min(b_k), max(b_id) FROM b WHERE b_k BETWEEN 100 AND 90000";

/// A share that is taken back at the `n`-th question whether it is, and the number of questions so far.
fn share(n: usize) -> (Arc<DeviceShare>, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    (Arc::new(DeviceShare::new(move || counted.fetch_add(1, Ordering::Relaxed) + 1 >= n)), asked)
}

struct Subject<'a> {
    number: usize,
    name: String,
    sql: &'a str,
    size: Size,
    settings: Settings,
}

impl Subject<'_> {
    /// Registers the tables. Only small ones have a key with many rows: in large ones it would have too many pairs.
    fn register(&self, session: &Session) {
        register_with(&session.ctx, self.size, 2, self.size.build == SMALL.build).unwrap();
    }

    async fn answer(&self) -> Answer {
        let session = Session::open(Engine::Stock, &settings(2, false), Memory::Ample).unwrap();
        self.register(&session);
        Run::of(&session.ctx, session.ctx.sql(self.sql).await).await.answer.unwrap()
    }

    /// Runs the query with a share that is taken back at the n-th question. Returns its report and the number of questions.
    async fn run(&self, n: usize, expected: &Answer) -> (Run, usize) {
        let case = format!("{}, taken back at question {n}", self.name);
        let (share, asked) = share(n);
        let session = Session::open(Engine::Overspill, &self.settings, Memory::Ample).unwrap();
        session.ctx.state_ref().write().config_mut().set_extension(share);
        self.register(&session);
        let run = Run::of(&session.ctx, session.ctx.sql(self.sql).await).await;
        let answer = run.answer.as_ref().unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(answer.difference(expected), None, "{case}: {:?}", run.report);
        let (device, selection) = (&run.report.device, &run.report.selection);
        assert!(device.failures.is_empty() && selection.failures.is_empty(), "{case}: {:?}", run.report);
        assert_eq!(session.leftovers().await, None, "{case}");
        (run, asked.load(Ordering::Relaxed))
    }

    /// Runs the query with the share taken back at every second of its last questions, and at some of those before. Subjects with
    /// even numbers and those with odd ones have other questions. Returns how many runs left the GPU.
    async fn take_back_everywhere(&self) -> usize {
        let expected = self.answer().await;
        let (kept, asked) = self.run(usize::MAX, &expected).await;
        let report = &kept.report;
        assert!(report.device.joins() + report.selection.gpu_rows > 0, "{}: {report:?}", self.name);
        assert_eq!((report.device.moves, report.selection.moves), (0, 0), "{}", self.name);
        // The last questions are those before units.
        let early = std::iter::successors(Some(1), |n| Some(n + (n / 2).max(1)));
        let last = asked.saturating_sub(16)..=asked;
        let mut moved = 0;
        for n in
            early.take_while(|n| n < last.start()).chain(last.clone().filter(|n| *n > 0 && n % 2 == self.number % 2))
        {
            let report = self.run(n, &expected).await.0.report;
            // A join that was taken from the device after it had its build side says so once.
            assert!(report.device.moves <= 1, "{}, {n}: {report:?}", self.name);
            moved += report.device.moves + report.selection.moves.min(1);
        }
        moved
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_the_device_is_taken_back_the_answer_is_right() {
    let emulated = start(64 * MIB);
    let mut moved = 0;
    let cases = STRATEGIES.into_iter().flat_map(|strategy| JOINS.map(|(name, sql, _)| (strategy, name, sql)));
    let cases = share_of(cases.enumerate());
    for &(number, (strategy, name, sql)) in &cases {
        let device = Some(Device::with(64 * MIB));
        let settings = Settings { strategy: strategy.into(), device, ..settings(2, false) };
        let subject = Subject { number, name: format!("{name} by {strategy}"), sql, size: SMALL, settings };
        let of_subject = subject.take_back_everywhere().await;
        assert!(of_subject > 0, "{}", subject.name);
        moved += of_subject;
    }
    assert_eq!(leftovers(&emulated), None);
    println!("moved {moved} times");
    assert!(moved > 2 * cases.len(), "moved {moved} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_large_joins_is_joined_once() {
    let emulated = start(16 * MIB);
    let strategies = [Strategy::GpuNoPartition, Strategy::Triton, Strategy::CpuPartitioned];
    let cases = strategies.into_iter().flat_map(|strategy| SUMS.map(|sql| (strategy, sql)));
    for (number, (strategy, sql)) in share_of(cases.enumerate()) {
        // The same sum has other questions by the next strategy.
        let number = number + number / SUMS.len();
        let device = Some(Device { aggregates: true, ..Device::with(16 * MIB) });
        let settings = Settings { strategy: strategy.into(), device, batch_size: 8192, ..settings(2, false) };
        let subject = Subject { number, name: format!("sum {number} by {strategy}"), sql, size: LARGE, settings };
        assert!(subject.take_back_everywhere().await > 0, "{}", subject.name);
    }
    assert_eq!(leftovers(&emulated), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_with_aggregates_leave_the_device() {
    let emulated = start(16 * MIB);
    for number in 0..2 {
        let device = Some(Device::with(16 * MIB));
        let settings = Settings { device, batch_size: 8192, ..settings(2, false) };
        let subject = Subject { number, name: "filter".to_owned(), sql: FILTERED, size: LARGE, settings };
        assert!(subject.take_back_everywhere().await > 0);
    }
    assert_eq!(leftovers(&emulated), None);
}
