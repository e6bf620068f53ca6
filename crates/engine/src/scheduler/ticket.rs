//! A query's place in the schedule.

use std::fmt;
use std::sync::{Arc, Weak};

use datafusion::common::{DataFusionError, exec_datafusion_err};
use datafusion::execution::memory_pool::MemoryPool;
use overspill_gpu_join::DeviceShare;
use overspill_schedule::{Place, QueryId, Reason};
use tokio::sync::watch;

use super::Scheduler;
use super::prediction::Prediction;
use super::query::{Signal, Stop};
use super::user::QueryUser;
use super::work::Stoppable;

/// A query's place in the schedule. Dropping it gives back all that the query has.
#[derive(Debug)]
pub(crate) struct Ticket {
    scheduler: Arc<Scheduler>,
    id: QueryId,
    signal: watch::Receiver<Signal>,
}

/// What an admitted query has.
#[derive(Debug, Clone)]
pub(crate) struct Admitted {
    pub place: Place,
    pub reason: Reason,
    pub memory: Arc<dyn MemoryPool>,
    /// Its share of the GPUs, until the scheduler takes it back.
    pub gpu: Arc<DeviceShare>,
}

/// Why a query does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stopped(Stop);

impl Ticket {
    /// A query arrives. `memory` is that of its session.
    pub fn new(
        scheduler: &Arc<Scheduler>,
        user: QueryUser,
        prediction: Prediction,
        memory: &Arc<dyn MemoryPool>,
        partitions: usize,
    ) -> Self {
        let (id, signal) = scheduler.shared().arrive(user, prediction, memory, partitions);
        Self { scheduler: Arc::clone(scheduler), id, signal }
    }

    /// Waits for the admission.
    ///
    /// # Errors
    /// If the query is stopped.
    pub async fn admitted(&self) -> Result<Admitted, Stopped> {
        let mut signal = self.signal.clone();
        let waited = signal.wait_for(|signal| !matches!(signal, Signal::Wait)).await;
        match waited.as_deref() {
            Ok(Signal::Run { place, reason, memory, gpu }) => {
                let (memory, gpu) = (Arc::clone(memory), Arc::clone(gpu));
                Ok(Admitted { place: *place, reason: *reason, memory, gpu })
            }
            Ok(Signal::Stop(stop)) => Err(Stopped(*stop)),
            // The sender lives as long as the ticket.
            Ok(Signal::Wait) | Err(_) => Err(Stopped(Stop::Cancelled)),
        }
    }

    /// Waits until the query is stopped. The future does not keep the ticket; it is pending for ever if the ticket is dropped before.
    pub fn stopped(&self) -> impl Future<Output = Stopped> + Send + 'static {
        let mut signal = self.signal.clone();
        async move {
            let stop = match signal.wait_for(|signal| matches!(signal, Signal::Stop(_))).await.as_deref() {
                Ok(Signal::Stop(stop)) => Some(*stop),
                _ => None,
            };
            match stop {
                Some(stop) => Stopped(stop),
                None => std::future::pending().await,
            }
        }
    }

    /// Work that is stopped with the query.
    pub fn stop_too(&self, work: Weak<dyn Stoppable>) {
        if self.scheduler.shared().stop_too(self.id, Weak::clone(&work)) {
            return;
        }
        // It was stopped meanwhile.
        work.upgrade().inspect(|work| work.stop());
    }

    /// The query has read all rows, so that its time tells of others like it.
    pub fn complete(&self) {
        self.scheduler.shared().complete(self.id);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.scheduler.shared().end(self.id);
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Stop::Cancelled => write!(f, "The query was cancelled"),
            Stop::TimeLimit(limit) => {
                write!(f, "The query was stopped, as it has taken {limit:?}, which is its time limit")
            }
        }
    }
}

impl From<Stopped> for DataFusionError {
    fn from(stopped: Stopped) -> Self {
        exec_datafusion_err!("{stopped}")
    }
}
