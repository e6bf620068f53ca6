//! What a rank does for one query.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err, internal_datafusion_err, internal_err};
use datafusion::execution::TaskContext;
use futures::future::{BoxFuture, Either, select};
use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt};
use overspill::write_aside::{Staged, StagedFile};
use overspill_exchange::transport::Job;
use overspill_exchange::{Error, ExchangeMetrics, HeavyKeys};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::error::of_exchange;
use crate::message::Committed;

/// The most lanes of an exchange.
const LANES: u64 = 1 << 16;

/// A join whose heavy keys are found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeavyJoin {
    /// Its number in the query.
    pub number: u64,
    /// Whether rows of the left side, or of the right one, may go to all ranks.
    pub may_go_everywhere: [bool; 2],
}

type Driver = BoxFuture<'static, Result<(), Error>>;

/// The rows of a lane.
pub type Lane = BoxStream<'static, Result<RecordBatch>>;

/// What sends rows, until it begins.
struct Waiting(Mutex<Option<Driver>>);

/// A rank's part in a query: the job, and what sends rows while operators wait for some.
pub struct RankJob {
    job: Job,
    runtime: Handle,
    drivers: Mutex<JoinSet<()>>,
    /// What was opened: exchanges and their lanes.
    opened: Mutex<BTreeSet<(u64, usize)>>,
    /// What each exchange has counted, in all its lanes and levels.
    metrics: Mutex<BTreeMap<u64, Vec<ExchangeMetrics>>>,
    /// What ranks find out about the keys of a join.
    heavy_keys: Mutex<BTreeMap<u64, Arc<HeavyKeys>>>,
    /// Lanes of exchanges that are open before an operator asks for them.
    ready: Mutex<BTreeMap<(u64, usize), Lane>>,
    /// What sends the rows of such lanes, by the joins that they belong to.
    waiting: Mutex<BTreeMap<u64, Vec<Arc<Waiting>>>>,
    /// The files that this rank has written, until they are in place.
    staged: Mutex<Option<Staged>>,
    commit: Mutex<Commit>,
}

/// Whether the first rank is putting files in place. Until that has ended, no rank may remove its own.
#[derive(Debug, Default)]
struct Commit {
    runs: bool,
    /// Whether the query was cancelled meanwhile.
    is_cancelled: bool,
}

impl RankJob {
    /// A part in a job. Call it from a task: rows are sent by others beside it.
    pub fn new(job: Job) -> Self {
        Self {
            job,
            runtime: Handle::current(),
            drivers: Mutex::default(),
            opened: Mutex::default(),
            metrics: Mutex::default(),
            heavy_keys: Mutex::default(),
            ready: Mutex::default(),
            waiting: Mutex::default(),
            staged: Mutex::default(),
            commit: Mutex::default(),
        }
    }

    /// The job that a plan runs in.
    pub fn of(context: &TaskContext) -> Result<Arc<Self>> {
        let job = context.session_config().get_extension::<Self>();
        job.ok_or_else(|| internal_datafusion_err!("an exchange between ranks outside of a job"))
    }

    /// The transport's part of the job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Notes that a lane of an exchange is open. Returns its number, which all ranks have alike.
    pub fn open(&self, exchange: u64, lane: usize) -> u64 {
        self.opened.lock().insert((exchange, lane));
        exchange * LANES + lane as u64
    }

    /// Whether a lane of an exchange was opened.
    pub fn is_open(&self, exchange: u64, lane: usize) -> bool {
        self.opened.lock().contains(&(exchange, lane))
    }

    /// Counts what an exchange does.
    pub fn count(&self, exchange: u64, metrics: impl IntoIterator<Item = ExchangeMetrics>) {
        self.metrics.lock().entry(exchange).or_default().extend(metrics);
    }

    /// What ranks find out about the keys of a join, by so many samples of each rank. Its two exchanges share it.
    pub fn heavy_keys(&self, join: &HeavyJoin, samples: usize) -> Arc<HeavyKeys> {
        let mut heavy_keys = self.heavy_keys.lock();
        let new = || Arc::new(HeavyKeys::new(&self.job, join.number, samples, join.may_go_everywhere));
        Arc::clone(heavy_keys.entry(join.number).or_insert_with(new))
    }

    /// Keeps open lanes of an exchange until operators ask for them.
    pub fn make_ready(&self, exchange: u64, lanes: impl IntoIterator<Item = Lane>) {
        let mut ready = self.ready.lock();
        ready.extend(lanes.into_iter().enumerate().map(|(number, lane)| ((exchange, number), lane)));
    }

    /// A lane that is open.
    pub fn ready(&self, exchange: u64, lane: usize) -> Option<Lane> {
        self.ready.lock().remove(&(exchange, lane))
    }

    /// Begins to send these rows when the other side of a join begins to: it waits for a sample of them.
    pub fn starts_with(&self, join: u64, rows: &Exchanging) {
        self.waiting.lock().entry(join).or_default().push(Arc::clone(&rows.driver));
    }

    /// Begins to send in the open lanes of a join: samples of them are waited for.
    fn start_waiting(&self, join: u64) {
        let drivers = self.waiting.lock().remove(&join).unwrap_or_default();
        drivers.into_iter().for_each(|driver| self.start(&driver));
    }

    /// Begins to send, if that has not begun.
    fn start(&self, driver: &Waiting) {
        let driver = driver.0.lock().take();
        if let Some(driver) = driver {
            self.spawn(driver);
        }
    }

    /// Drops the lanes that no operator has asked for.
    pub fn drop_ready(&self) {
        // What is dropped may look here again.
        let ready = std::mem::take(&mut *self.ready.lock());
        drop(ready);
        self.waiting.lock().clear();
    }

    /// How many keys of each join were heavy.
    pub fn heavy_keys_found(&self) -> BTreeMap<u64, usize> {
        let heavy_keys = self.heavy_keys.lock();
        heavy_keys.iter().filter_map(|(join, keys)| Some((*join, keys.found()?))).collect()
    }

    /// What each exchange has counted so far.
    pub fn metrics(&self) -> BTreeMap<u64, Vec<ExchangeMetrics>> {
        self.metrics.lock().clone()
    }

    fn spawn(&self, driver: Driver) {
        let job = self.job.clone();
        let sending = async move {
            // A driver that fails has told all ranks why. It ends with the job, also while its input has no rows to send.
            let sending = AssertUnwindSafe(driver).catch_unwind();
            if let Either::Left((Err(_), _)) = select(sending, pin!(job.failed())).await {
                job.fail("a task of an exchange has panicked");
            }
        };
        self.drivers.lock().spawn_on(sending, &self.runtime);
    }

    /// Waits until all rows are sent.
    pub async fn sent(&self) {
        loop {
            let mut drivers = std::mem::take(&mut *self.drivers.lock());
            if drivers.is_empty() {
                return;
            }
            while drivers.join_next().await.is_some() {}
        }
    }

    /// Keeps files that this rank has written.
    pub fn keep(&self, staged: Staged) {
        *self.staged.lock() = Some(staged);
    }

    /// Puts the files of all ranks in place, on the first. Once that has begun it is not cancelled: all are in place then, or none.
    ///
    /// # Errors
    /// The job has failed, or files cannot be moved.
    pub async fn commit(self: Arc<Self>, others: Vec<StagedFile>, context: Arc<TaskContext>) -> Result<()> {
        let commit = self.runtime.spawn({
            let job = Arc::clone(&self);
            async move {
                let _commit = Committing::begin(&job)?;
                let staged = job.staged.lock().take();
                let Some(staged) = staged else { return internal_err!("the first rank has written no files") };
                staged.commit(others, &context).await?;
                if let Err(error) = Committed::tell_all(&job.job).await {
                    tracing::warn!(%error, "files are in place, and other ranks could not be told");
                }
                Ok(())
            }
        });
        commit.await.map_err(|error| exec_datafusion_err!("files were not put in place: {error}"))?
    }

    /// Keeps this rank's files, if it has written any, until the first has put them in place.
    ///
    /// # Errors
    /// The job has failed. Then they are removed.
    pub async fn committed(&self) -> Result<()> {
        let staged = self.staged.lock().take();
        match staged {
            Some(_staged) => Committed::wait(&self.job).await,
            None => Ok(()),
        }
    }

    /// Ends the job on all ranks, if it has not ended.
    pub fn cancel(&self) {
        {
            let mut commit = self.commit.lock();
            if commit.runs {
                commit.is_cancelled = true;
                return;
            }
            // Under the lock, so that no commit begins which other ranks do not know of.
            self.job.fail("the query was cancelled");
        }
        self.drop_ready();
        self.drivers.lock().abort_all();
    }
}

/// A commit that runs. When it ends, in whichever way, a cancellation that has waited for it takes effect.
struct Committing<'j>(&'j RankJob);

impl<'j> Committing<'j> {
    fn begin(job: &'j RankJob) -> Result<Self> {
        let mut commit = job.commit.lock();
        if let Some(failure) = job.job.failure() {
            return Err(of_exchange(&failure));
        }
        commit.runs = true;
        Ok(Self(job))
    }
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        let is_cancelled = {
            let mut commit = self.0.commit.lock();
            commit.runs = false;
            commit.is_cancelled
        };
        if is_cancelled {
            self.0.cancel();
        }
    }
}

/// The rows that an exchange brings here. Sending begins when they are asked for, and also when they no longer are: other ranks wait for
/// theirs.
pub struct Exchanging {
    job: Arc<RankJob>,
    driver: Arc<Waiting>,
    rows: Option<BoxStream<'static, Result<RecordBatch, Error>>>,
    /// The join whose open lanes begin when this one does.
    starts: Option<u64>,
}

impl Exchanging {
    /// Rows that arrive, and what sends rows to other ranks.
    pub fn new(job: Arc<RankJob>, driver: Driver, rows: BoxStream<'static, Result<RecordBatch, Error>>) -> Self {
        Self { job, driver: Arc::new(Waiting(Mutex::new(Some(driver)))), rows: Some(rows), starts: None }
    }

    /// Makes the open lanes of a join begin with this one.
    #[must_use]
    pub fn starting(mut self, join: Option<u64>) -> Self {
        self.starts = join;
        self
    }

    fn start(&mut self) {
        self.job.start(&self.driver);
        if let Some(join) = self.starts.take() {
            self.job.start_waiting(join);
        }
    }
}

impl Stream for Exchanging {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.start();
        match &mut self.rows {
            Some(rows) => rows.poll_next_unpin(context).map_err(|error| of_exchange(&error)),
            None => Poll::Ready(None),
        }
    }
}

impl Drop for Exchanging {
    fn drop(&mut self) {
        // Senders learn first that nobody wants their rows here.
        self.rows = None;
        self.start();
    }
}
