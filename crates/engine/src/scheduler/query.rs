//! A query of a scheduler.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use datafusion::execution::memory_pool::MemoryPool;
use overspill_gpu_join::{DeviceShare, ShareLender};
use overspill_schedule::{Place, QueryId, Reason};
use tokio::sync::watch;

use super::grant::GrantPool;
use super::prediction::Prediction;
use super::user::QueryUser;
use super::work::Work;

/// What has become of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryState {
    /// It waits for its admission.
    Waiting,
    /// It runs.
    Running {
        /// Where.
        place: Place,
        /// Why there.
        reason: Reason,
    },
    /// It was stopped, and its work ends.
    Stopping,
}

/// A query that waits or runs.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryStatus {
    /// Its number.
    pub id: QueryId,
    /// Its user.
    pub user: String,
    /// What has become of it.
    pub state: QueryState,
    /// How long ago it arrived.
    pub age: Duration,
    /// Predicted seconds on the CPU alone, and with the GPU, if it can use one.
    pub predicted: (f64, Option<f64>),
    /// Bytes of memory that it holds, and those that it may; `None` before its admission, and without a limit.
    pub memory: Option<(usize, usize)>,
}

/// Why a query does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    Cancelled,
    /// It has taken as long as it may.
    TimeLimit(Duration),
}

/// What its streams wait for.
#[derive(Debug, Clone)]
pub(super) enum Signal {
    Wait,
    Run { place: Place, reason: Reason, memory: Arc<dyn MemoryPool>, gpu: Arc<DeviceShare> },
    Stop(Stop),
}

/// Who wants to know what joins find on the GPU.
pub(super) trait GpuObserver: Send + Sync {
    /// A join of a query there has read a build side of as many rows.
    fn build_side_read(&self, id: QueryId, rows: u64);

    /// A query has found the GPU lost.
    fn gpu_lost(&self);
}

/// Lends a query its share of the GPU.
struct Lender {
    id: QueryId,
    weight: f64,
    has_left: Arc<AtomicBool>,
    scheduler: Weak<dyn GpuObserver>,
}

impl ShareLender for Lender {
    fn is_taken_back(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    fn build_side_read(&self, rows: u64) {
        self.scheduler.upgrade().inspect(|scheduler| scheduler.build_side_read(self.id, rows));
    }

    fn weight(&self) -> f64 {
        self.weight
    }

    fn gpu_lost(&self) {
        self.scheduler.upgrade().inspect(|scheduler| scheduler.gpu_lost());
    }
}

/// A query of a scheduler.
#[derive(Debug)]
pub(super) struct Query {
    pub user: QueryUser,
    /// What its operators predict.
    pub prediction: Prediction,
    /// Seconds on the CPU and with the GPU, corrected by runs before.
    pub predicted: (f64, Option<f64>),
    /// Seconds on the scheduler's clock.
    pub arrived: f64,
    pub signal: watch::Sender<Signal>,
    /// The memory of its session.
    pub session_memory: Arc<dyn MemoryPool>,
    /// Its part of that; `None` before its admission, and without a limit.
    pub grant: Option<Arc<GrantPool>>,
    /// The place where it runs.
    pub place: Option<Place>,
    /// Set once it may not use a GPU any more.
    pub has_left_gpu: Arc<AtomicBool>,
    /// Whether it takes no slot.
    pub is_brief: bool,
    pub work: Work,
}

impl Query {
    /// What tells its joins when to leave the GPU, and the scheduler what they find there.
    pub fn share(&self, id: QueryId, scheduler: Weak<dyn GpuObserver>) -> Arc<DeviceShare> {
        let has_left = Arc::clone(&self.has_left_gpu);
        Arc::new(DeviceShare::new(Lender { id, weight: self.user.weight, has_left, scheduler }))
    }

    /// Moves it off the GPU. A unit of work that its joins have begun there still ends there.
    pub fn leave_gpu(&mut self) {
        self.has_left_gpu.store(true, Ordering::Relaxed);
        self.place = Some(Place::Cpu);
    }

    /// Tells its streams to stop. What they hold must be stopped too, without any lock.
    #[must_use]
    pub fn stop(&mut self, stop: Stop) -> Work {
        // Threads of its joins stop waiting for a turn on the GPU.
        self.has_left_gpu.store(true, Ordering::Relaxed);
        self.signal.send_replace(Signal::Stop(stop));
        std::mem::take(&mut self.work)
    }

    pub fn is_stopped(&self) -> bool {
        matches!(&*self.signal.borrow(), Signal::Stop(_))
    }

    pub fn status(&self, id: QueryId, now: f64) -> QueryStatus {
        let state = match &*self.signal.borrow() {
            Signal::Wait => QueryState::Waiting,
            Signal::Run { place, reason, .. } => {
                QueryState::Running { place: self.place.unwrap_or(*place), reason: *reason }
            }
            Signal::Stop(_) => QueryState::Stopping,
        };
        QueryStatus {
            id,
            user: self.user.name.clone(),
            state,
            age: Duration::try_from_secs_f64(now - self.arrived).unwrap_or_default(),
            predicted: self.predicted,
            memory: self.grant.as_ref().map(|grant| (grant.reserved(), grant.limit())),
        }
    }
}
