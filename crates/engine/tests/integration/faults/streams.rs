//! Streams of a join that are polled in any order, dropped in the middle, or never polled at all.
//!
//! In `Partitioned` mode every stream has rows of its own: those of the others do not depend on it. In `CollectLeft`
//! mode the streams share a build side, and rows that only the whole probe side decides (unmatched ones of the build
//! side, semi, anti and mark rows) must come out of whichever streams are left.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, RecordBatch};
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect};
use futures::StreamExt;

use crate::device::STRATEGIES;
use crate::harness::fixture::{JOINS, Size, register_with, settings};
use crate::harness::rows::Answer;
use crate::harness::run::TIME_LIMIT;
use crate::harness::session::{Device, Engine, Memory, Session, Settings};
use crate::harness::share::share_of;
use crate::test_gpu::TestGpu;

const STREAMS: usize = 3;

/// A planned join, in a session that makes it spill or not.
struct Planned {
    name: String,
    session: Session,
    plan: Arc<dyn ExecutionPlan>,
    partitioned: bool,
    /// The column that is NULL in unmatched rows of the build side, where the join type has such rows.
    unmatched: Option<usize>,
    /// Whether every row is decided by the whole probe side only.
    build_rows_only: bool,
}

impl Planned {
    /// The join has `floors` times the least memory that it needs, and spills.
    async fn new(join: usize, partitioned: bool, floors: Option<usize>) -> Self {
        Self::with_streams(join, partitioned, floors, STREAMS).await
    }

    async fn with_streams(join: usize, partitioned: bool, floors: Option<usize>, streams: usize) -> Self {
        Self::with_settings(join, settings(streams, partitioned), floors, (Size::SPILLING, true)).await
    }

    async fn with_settings(join: usize, settings: Settings, floors: Option<usize>, rows: (Size, bool)) -> Self {
        let (name, sql, _) = JOINS[join];
        let (size, is_skewed) = rows;
        let (streams, partitioned) = (settings.target_partitions, settings.partitioned);
        let plan_in = async |memory| {
            let session = Session::open(Engine::Overspill, &settings, memory).unwrap();
            register_with(&session.ctx, size, streams, is_skewed).unwrap();
            let plan = session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            // The join alone: rows that a dropped node above it has taken and not handed on are no concern of the join.
            let plan = find_join(&plan).unwrap();
            (session, plan)
        };
        let (session, plan) = plan_in(Memory::Ample).await;
        let floor = crate::harness::plan::PlanReport::of(&plan).floors[0];
        let (session, plan) = match floors {
            Some(floors) => plan_in(Memory::JoinLimit(floors * floor)).await,
            None => (session, plan),
        };
        assert_eq!(plan.output_partitioning().partition_count(), streams, "{name}: streams of the plan");
        let unmatched = match name {
            "left" | "full" => Some(plan.schema().index_of("b_id").unwrap()),
            _ => None,
        };
        let build_rows_only = ["left semi", "left anti", "left mark", "null-aware anti"].contains(&name);
        let mode = if partitioned { "partitioned" } else { "collected" };
        let memory = floors.map_or("in ample memory".to_owned(), |floors| format!("at {floors} times its floor"));
        let strategy = settings.strategy;
        Self {
            name: format!("{name} by {strategy}, {mode}, {memory}"),
            session,
            plan,
            partitioned,
            unmatched,
            build_rows_only,
        }
    }

    /// Every join type in every mode that it has, in ample memory and at the floor, or this run's share of them.
    async fn all() -> Vec<Self> {
        let mut cases = vec![];
        for (number, (_, _, can_be_partitioned)) in JOINS.into_iter().enumerate() {
            for partitioned in [false, true] {
                for floors in [None, Some(1)] {
                    if can_be_partitioned || !partitioned {
                        cases.push((number, partitioned, floors));
                    }
                }
            }
        }
        let mut all = vec![];
        for (number, partitioned, floors) in share_of(cases) {
            all.push(Self::new(number, partitioned, floors).await);
        }
        all
    }

    /// Starts every stream. `RepartitionExec` runs only once, so the plan is reset each time.
    fn start(&mut self) -> Vec<Option<SendableRecordBatchStream>> {
        self.plan = reset_plan_states(Arc::clone(&self.plan)).unwrap();
        (0..STREAMS).map(|stream| Some(self.plan.execute(stream, self.session.ctx.task_ctx()).unwrap())).collect()
    }

    fn answer(&self, batches: Vec<RecordBatch>) -> Answer {
        Answer::new(self.plan.schema(), batches).unwrap()
    }

    /// What each stream gives when all are polled to their end, one at a time.
    async fn reference(&mut self) -> Vec<Vec<RecordBatch>> {
        let mut answers = vec![];
        for stream in &mut self.start() {
            answers.push(drain(&self.name, stream.as_mut().unwrap()).await.unwrap());
        }
        answers
    }

    /// Checks what came of a run in which only some streams were polled to their end (`finished`); `other` is what the
    /// rest gave before they were dropped.
    fn judge(
        &self,
        what: &str,
        reference: &[Vec<RecordBatch>],
        finished: Vec<(usize, Vec<RecordBatch>)>,
        other: Vec<RecordBatch>,
    ) {
        let name = format!("{}, {what}", self.name);
        if self.partitioned {
            for (stream, batches) in finished {
                let expected = self.answer(reference[stream].clone());
                assert_eq!(self.answer(batches).difference(&expected), None, "{name}: stream {stream}");
            }
            return;
        }
        let every_one = finished.len() == STREAMS;
        let any_one = !finished.is_empty();
        let given: Vec<RecordBatch> = finished.into_iter().flat_map(|(_, batches)| batches).chain(other).collect();
        let all: Vec<RecordBatch> = reference.iter().flatten().cloned().collect();
        if every_one || (any_one && self.build_rows_only) {
            assert_eq!(self.answer(given).difference(&self.answer(all)), None, "{name}");
            return;
        }
        if any_one && let Some(column) = self.unmatched {
            let unmatched = |batches: &[RecordBatch]| self.answer(unmatched_rows(batches, column));
            assert_eq!(unmatched(&given).difference(&unmatched(&all)), None, "{name}: unmatched rows");
        }
        let given = self.answer(given);
        let rows = given.rows();
        assert_eq!(given.difference_to_some_of(&self.answer(all), rows), None, "{name}");
    }

    /// First with the plan still there, which other nodes cling to, then without it.
    async fn assert_nothing_left(&mut self, what: &str) {
        assert_eq!(self.session.leftovers_of_joins().await, None, "{}, {what}", self.name);
        self.plan = reset_plan_states(Arc::clone(&self.plan)).unwrap();
        assert_eq!(self.session.leftovers().await, None, "{}, {what}", self.name);
    }
}

fn find_join(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    match plan.name() {
        "HybridJoinExec" => Some(Arc::clone(plan)),
        _ => plan.children().into_iter().find_map(find_join),
    }
}

fn unmatched_rows(batches: &[RecordBatch], column: usize) -> Vec<RecordBatch> {
    batches
        .iter()
        .map(|batch| {
            let nulls: arrow::array::BooleanArray =
                (0..batch.num_rows()).map(|row| Some(batch.column(column).is_null(row))).collect();
            arrow::compute::filter_record_batch(batch, &nulls).unwrap()
        })
        .collect()
}

async fn drain(name: &str, stream: &mut SendableRecordBatchStream) -> Result<Vec<RecordBatch>> {
    let read = async {
        let mut batches = vec![];
        while let Some(batch) = stream.next().await {
            batches.push(batch?);
        }
        Ok(batches)
    };
    tokio::time::timeout(TIME_LIMIT, read).await.unwrap_or_else(|_| panic!("{name}: a stream does not end"))
}

/// Polls once; gives the batch if there is one, and whether the stream has ended.
async fn poll_once(stream: &mut SendableRecordBatchStream) -> (Option<RecordBatch>, bool) {
    let polled = poll_fn(|context| std::task::Poll::Ready(stream.poll_next_unpin(context))).await;
    match polled {
        std::task::Poll::Ready(Some(batch)) => (Some(batch.unwrap()), false),
        std::task::Poll::Ready(None) => (None, true),
        std::task::Poll::Pending => {
            // Whatever it waits for runs on other threads.
            tokio::time::sleep(Duration::from_millis(1)).await;
            (None, false)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_to_its_end_before_the_next_in_any_order() {
    for mut planned in Planned::all().await {
        poll_in_any_order(&mut planned).await;
    }
}

async fn poll_in_any_order(planned: &mut Planned) {
    let reference = planned.reference().await;
    for order in [[2, 1, 0], [1, 2, 0], [0, 2, 1]] {
        let mut streams = planned.start();
        let mut finished = vec![];
        for stream in order {
            let mut taken = streams[stream].take().unwrap();
            finished.push((stream, drain(&planned.name, &mut taken).await.unwrap()));
        }
        planned.judge(&format!("order {order:?}"), &reference, finished, vec![]);
        planned.assert_nothing_left("in order").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_others_are_never_polled_or_dropped_at_once() {
    for mut planned in Planned::all().await {
        poll_one_alone(&mut planned).await;
    }
}

async fn poll_one_alone(planned: &mut Planned) {
    let reference = planned.reference().await;
    for polled in 0..STREAMS {
        for dropped in [false, true] {
            let mut streams = planned.start();
            let mut taken = streams[polled].take().unwrap();
            if dropped {
                streams.clear();
            }
            let batches = drain(&planned.name, &mut taken).await.unwrap();
            let what = format!("only stream {polled} polled, the others dropped: {dropped}");
            planned.judge(&what, &reference, vec![(polled, batches)], vec![]);
            drop((taken, streams));
            planned.assert_nothing_left(&what).await;
        }
    }
}

/// Chunks of several streams are joined together, by whichever is polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_on_the_device_are_polled_and_dropped_in_any_order() {
    const MEMORY: usize = 32 << 20;
    let emulated = TestGpu::start();
    emulated.configure(&format!("memory={MEMORY}"));
    let names = ["inner", "full", "left semi", "right anti"];
    for (strategy, name) in share_of(STRATEGIES.into_iter().flat_map(|strategy| names.map(|name| (strategy, name)))) {
        let join = JOINS.iter().position(|(other, ..)| *other == name).unwrap();
        let device = Some(Device::with(MEMORY));
        let settings = Settings { strategy: strategy.into(), device, ..settings(STREAMS, false) };
        let mut planned = Planned::with_settings(join, settings, None, (Size::SPILLING, true)).await;
        poll_in_any_order(&mut planned).await;
        poll_one_alone(&mut planned).await;
        drop_one_on_the_way(&mut planned).await;
    }
    overspill::OverspillRuntime::of_process().release();
    assert_eq!(emulated.statistics().held(), [0; 9]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_is_ever_polled() {
    for mut planned in Planned::all().await {
        drop(planned.start());
        planned.assert_nothing_left("never polled").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_are_dropped_at_the_kth_poll() {
    for mut planned in Planned::all().await {
        for polls in (1..12).chain((12..400).step_by(29)) {
            let mut streams = planned.start();
            let mut ended = [false; STREAMS];
            for poll in 0..polls {
                let stream = poll % STREAMS;
                if !ended[stream] {
                    ended[stream] = poll_once(streams[stream].as_mut().unwrap()).await.1;
                }
            }
            drop(streams);
            planned.assert_nothing_left(&format!("dropped after {polls} polls")).await;
            if ended.iter().all(|ended| *ended) {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_is_dropped_at_its_kth_poll() {
    for mut planned in Planned::all().await {
        drop_one_on_the_way(&mut planned).await;
    }
}

async fn drop_one_on_the_way(planned: &mut Planned) {
    let reference = planned.reference().await;
    for polls in [1, 2, 3, 5, 9, 17, 40, 90] {
        let mut streams = planned.start();
        let mut victim = streams[1].take().unwrap();
        let mut given = vec![];
        let mut was_last = false;
        for _ in 0..polls {
            let (batch, ended) = poll_once(&mut victim).await;
            was_last |= ended;
            given.extend(batch);
        }
        drop(victim);
        let mut finished = vec![];
        for stream in [0, 2] {
            let mut taken = streams[stream].take().unwrap();
            finished.push((stream, drain(&planned.name, &mut taken).await.unwrap()));
        }
        let what = format!("stream 1 dropped after {polls} polls");
        planned.judge(&what, &reference, finished, given);
        planned.assert_nothing_left(&what).await;
        if was_last {
            break;
        }
    }
}

/// The stream that ends the last input joins the spilled partitions with the memory of all streams that have probed, if there
/// is room for several partitions. A stream that starts late may find its input taken, so several runs are tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spilled_partitions_of_a_shared_build_side_are_joined_together() {
    const RUNS: usize = 50;
    const SIZE: Size = Size { build: 48_000, probe: 2_000 };
    let settings = Settings { max_fanout: 16, ..settings(STREAMS, false) };
    for name in ["left", "full", "left semi", "left anti", "left mark"] {
        let join = JOINS.iter().position(|(other, ..)| *other == name).unwrap();
        let mut planned = Planned::with_settings(join, settings.clone(), Some(4), (SIZE, false)).await;
        let reference = planned.reference().await;
        let mut joiners = vec![];
        while joiners.iter().all(|joiners| *joiners < 2) {
            assert!(joiners.len() < RUNS, "{}: spilled partitions were joined by {joiners:?} streams", planned.name);
            let running: Vec<_> = planned
                .start()
                .into_iter()
                .flatten()
                .map(|mut stream| tokio::spawn(async move { drain("a stream", &mut stream).await.unwrap() }))
                .collect();
            let finished = futures::future::join_all(running).await.into_iter().map(|batches| batches.unwrap());
            planned.judge("polled together", &reference, finished.enumerate().collect(), vec![]);
            let metrics = planned.plan.metrics().unwrap();
            joiners.push(metrics.sum_by_name("deferred_streams").map_or(0, |joiners| joiners.as_usize()));
            planned.assert_nothing_left("polled together").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_run_again() {
    for mut planned in Planned::all().await {
        let task = planned.session.ctx.task_ctx();
        let mut answers = vec![];
        for _ in 0..3 {
            let plan = reset_plan_states(Arc::clone(&planned.plan)).unwrap();
            answers.push(planned.answer(collect(plan, Arc::clone(&task)).await.unwrap()));
        }
        for answer in &answers[1..] {
            assert_eq!(answer.difference(&answers[0]), None, "{}, run again", planned.name);
        }
        planned.assert_nothing_left("run again").await;
    }
}

/// Without a node that has to be reset, the same plan runs as often as one likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_run_again_without_a_reset() {
    for number in 0..JOINS.len() {
        for floors in [None, Some(1)] {
            let mut planned = Planned::with_streams(number, false, floors, 1).await;
            let task = planned.session.ctx.task_ctx();
            let first = planned.answer(collect(Arc::clone(&planned.plan), Arc::clone(&task)).await.unwrap());
            let again = planned.answer(collect(Arc::clone(&planned.plan), task).await.unwrap());
            assert_eq!(again.difference(&first), None, "{}, run again without a reset", planned.name);
            planned.assert_nothing_left("run again without a reset").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_queries_leave_nothing() {
    for mut planned in Planned::all().await {
        for milliseconds in [0, 1, 3, 8, 20] {
            let plan = reset_plan_states(Arc::clone(&planned.plan)).unwrap();
            let running = tokio::spawn(collect(plan, planned.session.ctx.task_ctx()));
            tokio::time::sleep(Duration::from_millis(milliseconds)).await;
            running.abort();
            let _ = running.await;
            planned.assert_nothing_left(&format!("cancelled after {milliseconds} ms")).await;
        }
    }
}
