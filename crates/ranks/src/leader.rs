//! The rank that users talk to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::common::Result;
use futures::future::try_join_all;
use overspill_distributed::settings::VERSION;
use overspill_exchange::transport::{Endpoint, Job, JobId};
use overspill_exchange::{Levels, Rank};

use crate::message::{FIRST, Order};

/// The first rank of a job, whose session runs queries on all ranks.
///
/// Queries run on all ranks where they can, and on the first alone where nothing would be gained: over what only it has, such as tables in
/// memory. `COPY` to a folder and `INSERT` write on all ranks, `COPY` to one file and
/// `CREATE TABLE … AS` on the first.
#[derive(Debug)]
pub struct Leader {
    endpoint: Arc<Endpoint>,
    next: AtomicU64,
}

impl Leader {
    /// The first rank. All others [`serve`](crate::serve) it.
    ///
    /// # Panics
    /// If the endpoint is of another rank.
    pub fn new(endpoint: Arc<Endpoint>) -> Self {
        assert_eq!(endpoint.rank(), FIRST, "the first rank leads");
        Self { endpoint, next: AtomicU64::new(0) }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.endpoint.topology().ranks()
    }

    /// The levels that rows are shuffled on by default: two if there are several nodes, of several ranks.
    pub(crate) fn levels(&self) -> Levels {
        let topology = self.endpoint.topology();
        if topology.nodes() > 1 && topology.ranks() > topology.nodes() { Levels::Two } else { Levels::One }
    }

    /// Begins a job, which all ranks begin in this order.
    pub(crate) fn begin(&self) -> Job {
        Job::begin(&self.endpoint, JobId(self.next.fetch_add(1, Ordering::Relaxed)))
    }

    /// The other ranks.
    pub(crate) fn others(&self) -> std::ops::Range<Rank> {
        FIRST + 1..self.ranks()
    }

    /// Tells the others that no further query comes.
    ///
    /// # Errors
    /// A rank is lost.
    pub async fn end(&self) -> Result<()> {
        let job = self.begin();
        let order = Order { version: VERSION.to_owned(), ..Order::default() };
        try_join_all(self.others().map(|rank| order.send(&job, rank))).await?;
        Ok(())
    }
}
