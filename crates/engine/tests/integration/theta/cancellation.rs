//! Joins that are given up on the way, as a whole or one of their streams, and how soon they notice.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect};
use futures::StreamExt;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::case::{SPILLING, floor, register, settings};
use crate::harness::rows::Answer;
use crate::harness::session::{Engine, Memory, Session};

const STREAMS: usize = 3;

/// Joins whose answer any one stream must give when the others are given up: rows of the build side alone.
const OF_BUILD_ROWS: [&str; 3] = [
    "SELECT a_id, a_w FROM a LEFT ANTI JOIN b ON a_i < b_i - 700",
    "SELECT a_id, a_w FROM a LEFT SEMI JOIN b ON a_i BETWEEN b_i AND b_hi AND a_s <> b_s",
    "SELECT a_id, a_w FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a_i > b_i + 800) OR a_id % 3 = 0",
];

/// A planned join; its plan is that of the join alone.
struct Planned {
    session: Session,
    plan: Arc<dyn ExecutionPlan>,
}

impl Planned {
    async fn new(sql: &str, memory: Memory, rows: [usize; 2]) -> Self {
        let session = Session::open(Engine::Overspill, &settings(STREAMS, 500), memory).unwrap();
        register(&session.ctx, rows, STREAMS, &mut StdRng::seed_from_u64(11)).unwrap();
        let plan = session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let plan = join_of(&plan).unwrap_or_else(|| panic!("{sql} has no theta join"));
        assert_eq!(plan.output_partitioning().partition_count(), STREAMS, "{sql}");
        Self { session, plan }
    }

    fn start(&mut self) -> Vec<Option<SendableRecordBatchStream>> {
        self.plan = reset_plan_states(Arc::clone(&self.plan)).unwrap();
        (0..STREAMS).map(|stream| Some(self.plan.execute(stream, self.session.ctx.task_ctx()).unwrap())).collect()
    }

    fn answer(&self, batches: Vec<RecordBatch>) -> Answer {
        Answer::new(self.plan.schema(), batches).unwrap()
    }

    async fn nothing_is_left(&mut self, what: &str) {
        assert_eq!(self.session.leftovers_of_joins().await, None, "{what}");
        self.plan = reset_plan_states(Arc::clone(&self.plan)).unwrap();
        assert_eq!(self.session.leftovers().await, None, "{what}");
    }
}

fn join_of(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    match plan.name() {
        "ThetaJoinExec" => Some(Arc::clone(plan)),
        _ => plan.children().into_iter().find_map(join_of),
    }
}

async fn drain(stream: &mut SendableRecordBatchStream) -> Vec<RecordBatch> {
    let mut batches = vec![];
    while let Some(batch) = stream.next().await {
        batches.push(batch.unwrap());
    }
    batches
}

/// Polls once; gives what came, or `None` if the stream has ended.
async fn poll_once(stream: &mut SendableRecordBatchStream) -> Option<Option<RecordBatch>> {
    let polled = poll_fn(|context| Poll::Ready(stream.poll_next_unpin(context))).await;
    match polled {
        Poll::Ready(batch) => batch.map(|batch| Some(batch.unwrap())),
        Poll::Pending => {
            // Whatever it waits for runs on other threads.
            tokio::time::sleep(Duration::from_millis(1)).await;
            Some(None)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_given_up_leaves_its_rows_to_the_others() {
    for sql in OF_BUILD_ROWS {
        for memory in [Memory::Ample, Memory::JoinLimit(floor(STREAMS))] {
            let mut planned = Planned::new(sql, memory, SPILLING).await;
            let mut expected = vec![];
            for stream in &mut planned.start() {
                expected.extend(drain(stream.as_mut().unwrap()).await);
            }
            let expected = planned.answer(expected);
            assert!(expected.rows() > 0, "{sql}: the answer is empty");
            for polls in [0, 1, 4, 15, 60] {
                let what = format!("{sql}, {memory:?}, one dropped after {polls} polls, another never polled");
                let mut streams = planned.start();
                let mut given = vec![];
                let mut victim = streams[1].take().unwrap();
                for _ in 0..polls {
                    let Some(batch) = poll_once(&mut victim).await else { break };
                    given.extend(batch);
                }
                drop(victim);
                given.extend(drain(streams[2].as_mut().unwrap()).await);
                assert_eq!(planned.answer(given).difference(&expected), None, "{what}");
                drop(streams);
                planned.nothing_is_left(&what).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_dropped_at_any_poll_leaves_nothing() {
    let sql = "SELECT a_id, a_w, b_id, b_w FROM a FULL JOIN b ON a_i BETWEEN b_i AND b_hi";
    for memory in [Memory::Ample, Memory::JoinLimit(floor(STREAMS))] {
        let mut planned = Planned::new(sql, memory, SPILLING).await;
        for polls in [0, 1, 2, 5, 9, 20, 45, 100, 300] {
            let mut streams = planned.start();
            for poll in 0..polls {
                if let Some(stream) = &mut streams[poll % STREAMS]
                    && poll_once(stream).await.is_none()
                {
                    streams[poll % STREAMS] = None;
                }
            }
            drop(streams);
            planned.nothing_is_left(&format!("{memory:?}, dropped after {polls} polls")).await;
        }
    }
}

/// The join alone would take minutes; its filter lets nothing through, so that no batch ends a poll.
const ENDLESS: &str = "SELECT count(*) FROM a JOIN b ON a_i + b_i < -1 AND a_w <> b_w";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_without_output_is_cancelled_at_once() {
    for (sql, rows) in [
        (ENDLESS, [60_000, 60_000]),
        ("SELECT count(*) FROM a JOIN b ON a_i < b_hi AND a_hi > b_i AND a_id + b_id < 0", [400_000, 400_000]),
    ] {
        let session = Session::open(Engine::Overspill, &settings(2, 8_192), Memory::Ample).unwrap();
        register(&session.ctx, rows, 2, &mut StdRng::seed_from_u64(5)).unwrap();
        let plan = session.ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        assert!(join_of(&plan).is_some(), "{sql} has no theta join");
        let mut running = tokio::spawn(collect(plan, session.ctx.task_ctx()));
        let waited = Instant::now();
        if let Ok(ended) = tokio::time::timeout(Duration::from_millis(300), &mut running).await {
            panic!("{sql} ended after {:?} with {ended:?}", waited.elapsed());
        }
        let cancelled = Instant::now();
        running.abort();
        let _ = running.await;
        assert_eq!(session.leftovers().await, None, "{sql}");
        let took = cancelled.elapsed();
        assert!(took < Duration::from_secs(1), "{sql} went on for {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_is_short() {
    let mut planned = Planned::new(&ENDLESS.replace("count(*)", "a_id, b_id"), Memory::Ample, [20_000, 20_000]).await;
    let mut streams = planned.start();
    let stream = streams[0].as_mut().unwrap();
    // As long as the build side is read, a poll ends because there is nothing to do.
    let mut polls: Vec<Duration> = vec![];
    while polls.iter().filter(|poll| **poll > Duration::from_millis(5)).count() < 20 {
        let polled = Instant::now();
        let ended = poll_fn(|context| Poll::Ready(stream.poll_next_unpin(context).is_ready())).await;
        assert!(!ended, "the join has ended");
        polls.push(polled.elapsed());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    polls.sort_unstable();
    let median = polls[polls.len() - 10];
    println!("long polls took {median:?}, the longest {:?}", polls.last());
    // Half of them, for others use the machine as well.
    assert!(median < Duration::from_millis(200), "polls took {median:?}");
}
