//! The clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datafusion::common::{Result, exec_datafusion_err};
use overspill::scheduler::Scheduler;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use tokio::task::{JoinHandle, JoinSet};

use super::machine::{Machine, Query};
use super::{Load, LoadPolicy, LoadUsers};

/// The time between two brief queries, and between two looks at the memory.
const PAUSE: Duration = Duration::from_millis(20);

/// What is brief.
const BRIEF: &str = "SELECT 1";

/// A query that a client ran.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    pub client: usize,
    /// The number of the query.
    pub query: usize,
    pub seconds: f64,
}

/// Clients that run queries at the same time.
pub(super) struct Clients {
    pub count: usize,
    pub users: LoadUsers,
    /// For how long they start queries.
    pub seconds: Duration,
    pub seed: u64,
    pub scheduler: Option<Arc<Scheduler>>,
}

impl Clients {
    /// Runs all of them to their ends.
    ///
    /// # Errors
    /// That of the first query that fails.
    pub async fn run(self, machine: &Arc<Machine>, queries: &Arc<[Query]>, policy: LoadPolicy) -> Result<Load> {
        let start = Instant::now();
        let mut clients: JoinSet<Result<Vec<Ran>>> = JoinSet::new();
        for client in 0..self.count {
            let user = match self.users {
                LoadUsers::Each => format!("user {client}"),
                LoadUsers::First => if client == 0 { "first" } else { "others" }.to_owned(),
            };
            let session = machine.session(&user, self.scheduler.as_ref()).await?;
            let (machine, queries) = (Arc::clone(machine), Arc::clone(queries));
            let seed = self.seed.wrapping_add(client as u64);
            let end = self.seconds;
            clients.spawn(async move {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                let mut order: Vec<usize> = (0..queries.len()).collect();
                let mut ran = vec![];
                loop {
                    order.shuffle(&mut random);
                    for query in &order {
                        if start.elapsed() >= end {
                            return Ok(ran);
                        }
                        let seconds = machine.run(&session, &queries[*query]).await?;
                        ran.push(Ran { client, query: *query, seconds });
                    }
                }
            });
        }
        let has_ended = Arc::new(AtomicBool::new(false));
        let brief = {
            let session = machine.session("brief", self.scheduler.as_ref()).await?;
            let (machine, has_ended) = (Arc::clone(machine), Arc::clone(&has_ended));
            let brief: JoinHandle<Result<(Vec<f64>, usize)>> = tokio::spawn(async move {
                let (mut seconds, mut most_reserved) = (vec![], 0);
                while !has_ended.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    overspill::sql::sql(&session, BRIEF).await?.collect().await?;
                    seconds.push(start.elapsed().as_secs_f64());
                    most_reserved = most_reserved.max(machine.memory().reserved());
                    tokio::time::sleep(PAUSE).await;
                }
                Ok((seconds, most_reserved))
            });
            brief
        };
        let stopped = |error| exec_datafusion_err!("A client stopped: {error}");
        let mut ran: Vec<Ran> = vec![];
        while let Some(client) = clients.join_next().await {
            ran.extend(client.map_err(stopped)??);
        }
        let elapsed = start.elapsed().as_secs_f64();
        has_ended.store(true, Ordering::Relaxed);
        let (brief, most_reserved) = brief.await.map_err(stopped)??;
        Ok(Load { policy, clients: self.count, elapsed, ran, brief, most_reserved })
    }
}
