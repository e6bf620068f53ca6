//! All-to-all: every rank of a group sends each of the others a part of its rows (paper 4, section 3.2).
//!
//! Rows go in rounds, so that they need not all be in memory. A round begins with a message of sizes to each rank: the rows for it, and the
//! bytes of each of their columns. Then each column that has rows is one message to each rank. Who receives takes the rows that have arrived, of
//! whichever ranks: many rows of a rank are a batch whose columns are the messages, few rows of several ranks are put together. The paper has
//! one round, in which all ranks wait for each other, and puts all of it together. Columns are compressed where a message crosses the network.
//!
//! ```text
//!   outgoing ─▶ column ─▶ sizes      incoming ─▶ sizes
//!                                           └──▶ table ─▶ column
//! ```

mod column;
mod incoming;
mod metrics;
mod outgoing;
mod sizes;
mod table;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use futures::channel::mpsc;

use crate::rank::Rank;
use crate::transport::{Job, StreamNumber};

pub use incoming::Incoming;
pub use metrics::{Columns, ExchangeMetrics, Exchanged, GpuBytes, Work};
pub use outgoing::Outgoing;

/// Messages to a rank that wait there, in rounds: the next arrives while one is taken.
const WINDOW_ROUNDS: usize = 2;

/// What ranks agree on.
#[derive(Debug, Clone)]
pub struct AllToAll {
    /// The number of the streams.
    pub number: StreamNumber,
    /// The ranks to which rows are sent, in the order of their partitions. Among them may be the rank itself.
    pub to: Vec<Rank>,
    /// The ranks that send rows here.
    pub from: Vec<Rank>,
    /// The type of the rows.
    pub schema: SchemaRef,
    /// What all ranks must agree on, in words.
    pub description: Arc<str>,
    /// The bytes of a round for one rank, about.
    pub piece_bytes: usize,
    /// Whether columns are compressed for ranks on other nodes.
    pub is_compressed: bool,
}

impl AllToAll {
    /// Opens the streams. Rows are sent only while they are received, so the two ends are polled by different tasks, or together.
    pub fn open(self, job: &Job) -> (Outgoing, Incoming) {
        let metrics = ExchangeMetrics::default();
        // What the rank keeps waits as what it receives does.
        let (own, kept) = mpsc::channel(WINDOW_ROUNDS - 1);
        let incoming = Incoming::new(job, &self, kept, metrics.clone());
        (Outgoing::new(job, self, own, metrics), incoming)
    }
}
