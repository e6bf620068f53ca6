//! Many queries on one machine: who runs, where, and with how much memory.
//!
//! Without a [`Scheduler`] every query starts at once, takes the GPU in turns with all others, and reserves memory where others have left
//! some. With one, which sessions share, a query first waits for its [admission](crate::AdmissionExec). It then has a place, the
//! CPU alone or with the GPU, and a part of the memory. The policies are those of [`overspill_schedule`], which is pure logic. This
//! module brings them clocks, threads and predictions.
//!
//! ```text
//!   plan ──▶ AdmissionExec ──▶ Ticket ──▶ Scheduler ──▶ overspill_schedule::Schedule
//!                 │               │           │
//!                 │               │           └ ticker: a thread for what happens at a time, as limits of it
//!                 │               └ status: waits, runs at a place, is stopped
//!                 └ input, executed with the place and the grant of the ticket
//! ```

mod clock;
mod config;
mod grant;
mod prediction;
mod query;
mod shared;
#[cfg(test)]
mod tests;
mod ticket;
mod user;
mod work;

use std::sync::Arc;

use datafusion::common::{Result, exec_datafusion_err};
use datafusion::prelude::SessionConfig;
use overspill_schedule::{Entry, QueryId};

pub use config::SchedulerConfig;
pub use query::{QueryState, QueryStatus};
pub use user::QueryUser;

pub(crate) use prediction::{ByKind, Kind, Prediction, work};
pub(crate) use ticket::{Admitted, Stopped, Ticket};
pub(crate) use work::Stoppable;

use query::Stop;
use shared::Shared;

/// Runs the queries of all sessions that have it, on one machine.
///
/// ```
/// use std::sync::Arc;
///
/// use datafusion::execution::SessionStateBuilder;
/// use datafusion::prelude::SessionContext;
/// use overspill::scheduler::{Scheduler, SchedulerConfig};
/// use overspill::{OverspillConfig, OverspillSessionExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> datafusion::error::Result<()> {
/// let scheduler = Arc::new(Scheduler::new(SchedulerConfig::default())?);
/// let state = SessionStateBuilder::new_with_default_features()
///     .with_overspill(OverspillConfig::default())
///     .with_overspill_scheduler(Arc::clone(&scheduler))
///     .build();
/// let rows = SessionContext::new_with_state(state).sql("SELECT 1").await?.collect().await?;
/// assert_eq!(rows[0].num_rows(), 1);
/// // The query has ended.
/// assert!(scheduler.queries().is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Scheduler {
    shared: Arc<Shared>,
}

impl Scheduler {
    /// Starts a scheduler, with a thread of its own.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(config: SchedulerConfig) -> Result<Self> {
        let shared = Shared::new(config);
        clock::start(&shared).map_err(|error| exec_datafusion_err!("The scheduler has no thread: {error}"))?;
        Ok(Self { shared })
    }

    /// The queries that wait or run, in the order of their arrival.
    pub fn queries(&self) -> Vec<QueryStatus> {
        self.shared.queries()
    }

    /// Stops a query in any state. Its streams end with an error. The scheduler releases what they hold, even if no one reads them.
    /// Returns whether the query was there.
    pub fn cancel(&self, id: QueryId) -> bool {
        self.shared.stop(id, Stop::Cancelled)
    }

    /// The last events, the oldest first: at most [`Self::LOGGED`]. [`overspill_schedule::check`] checks them.
    pub fn log(&self) -> Vec<Entry> {
        self.shared.log()
    }

    /// The most events that are kept.
    pub const LOGGED: usize = 1 << 16;

    /// The configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.shared.config
    }

    /// The scheduler of a session.
    pub(crate) fn of(config: &SessionConfig) -> Option<Arc<Self>> {
        config.get_extension::<Self>()
    }

    /// The memory of a query that is planned now, of a pool with this limit, if nothing changes until it runs.
    pub(crate) fn expected_grant(&self, limit: usize) -> usize {
        self.shared.expected_grant(limit)
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.shared.close();
    }
}
