//! What the first rank tells the others, and they tell it.

use std::collections::BTreeMap;
use std::time::Duration;

use arrow::buffer::Buffer;
use datafusion::common::{Result, exec_datafusion_err};
use futures::StreamExt;
use futures::future::try_join_all;
use overspill_exchange::transport::{Job, Receiver, Sender, StreamNumber};
use overspill_exchange::{Columns, Exchanged, Rank};
use prost::{Enumeration, Message};

use crate::error::of_exchange;

/// The rank that users talk to.
pub const FIRST: Rank = 0;

/// The stream of what the first rank tells. Exchanges have smaller numbers, and gathers larger ones.
const ORDER: StreamNumber = 1 << 62;

/// The stream of what others tell it.
const REPORT: StreamNumber = ORDER + 1;

/// The stream of the word that files are in place.
const COMMITTED: StreamNumber = ORDER + 2;

/// What a rank is to do.
#[derive(Clone, PartialEq, Message)]
pub struct Order {
    /// The version of the first rank.
    #[prost(string, tag = "1")]
    pub version: String,
    /// The rank's part of the plan; empty if no query follows.
    #[prost(bytes = "vec", tag = "2")]
    pub plan: Vec<u8>,
    /// The settings of the query.
    #[prost(btree_map = "string, string", tag = "3")]
    pub settings: BTreeMap<String, String>,
    /// Whether the first rank wants to know what operators have counted.
    #[prost(bool, tag = "4")]
    pub is_analyzed: bool,
}

impl Order {
    /// Tells it a rank.
    pub async fn send(&self, job: &Job, to: Rank) -> Result<()> {
        send(job, to, ORDER, self.encode_to_vec()).await
    }

    /// Waits for what the first rank tells.
    pub async fn receive(job: &Job) -> Result<Self> {
        receive(Receiver::open(job, FIRST, ORDER, 1)).await
    }
}

/// What a rank has done, at the end of its part.
#[derive(Clone, PartialEq, Message)]
pub struct Report {
    /// What each exchange has counted.
    #[prost(btree_map = "uint64, message", tag = "1")]
    pub exchanges: BTreeMap<u64, Counters>,
    /// What each operator has counted, if that was asked for.
    #[prost(message, repeated, tag = "2")]
    pub nodes: Vec<NodeMetrics>,
}

/// What an operator has counted.
#[derive(Clone, PartialEq, Message)]
pub struct NodeMetrics {
    /// The exchange that its rows go to.
    #[prost(uint64, tag = "1")]
    pub stage: u64,
    /// The way down from there, by numbers of children.
    #[prost(uint32, repeated, tag = "2")]
    pub path: Vec<u32>,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The metrics.
    #[prost(message, repeated, tag = "4")]
    pub metrics: Vec<MetricMessage>,
}

/// A metric of an operator.
#[derive(Clone, PartialEq, Message)]
pub struct MetricMessage {
    /// What it counts.
    #[prost(enumeration = "MetricKind", tag = "1")]
    pub kind: i32,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// What tells it from others of its name.
    #[prost(btree_map = "string, string", tag = "3")]
    pub labels: BTreeMap<String, String>,
    /// Its numbers: of most kinds one.
    #[prost(uint64, repeated, tag = "4")]
    pub values: Vec<u64>,
}

/// The kinds of metrics that DataFusion's operators have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub enum MetricKind {
    Unknown = 0,
    OutputRows = 1,
    ElapsedCompute = 2,
    SpillCount = 3,
    SpilledBytes = 4,
    OutputBytes = 5,
    OutputBatches = 6,
    SpilledRows = 7,
    CurrentMemoryUsage = 8,
    Count = 9,
    Gauge = 10,
    PeakMemoryUsage = 11,
    Time = 12,
    Pruning = 13,
    Ratio = 14,
}

impl Report {
    /// Tells it the first rank.
    pub async fn send(&self, job: &Job) -> Result<()> {
        send(job, FIRST, REPORT, self.encode_to_vec()).await
    }

    /// Where the report of a rank arrives.
    pub fn from(job: &Job, rank: Rank) -> Receiver {
        Receiver::open(job, rank, REPORT, 1)
    }

    /// Waits for the report.
    pub async fn receive(from: Receiver) -> Result<Self> {
        receive(from).await
    }
}

/// The word of the first rank that the files of all ranks are in place.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Committed {}

impl Committed {
    /// Tells it all other ranks.
    pub async fn tell_all(job: &Job) -> Result<()> {
        let others = FIRST + 1..job.endpoint().topology().ranks();
        try_join_all(others.map(|rank| send(job, rank, COMMITTED, Self {}.encode_to_vec()))).await?;
        Ok(())
    }

    /// Waits for it.
    pub async fn wait(job: &Job) -> Result<()> {
        receive::<Self>(Receiver::open(job, FIRST, COMMITTED, 1)).await.map(drop)
    }
}

/// What a rank has counted in an exchange.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Counters {
    #[prost(uint64, tag = "1")]
    rounds: u64,
    #[prost(uint64, tag = "2")]
    messages_across: u64,
    #[prost(uint64, tag = "3")]
    bytes_across: u64,
    #[prost(uint64, tag = "4")]
    sent_bytes_across: u64,
    #[prost(uint64, tag = "5")]
    messages_within: u64,
    #[prost(uint64, tag = "6")]
    bytes_within: u64,
    #[prost(uint64, tag = "7")]
    sent_bytes_within: u64,
    #[prost(uint64, tag = "8")]
    kept_rows: u64,
    #[prost(uint64, tag = "9")]
    sent_rows: u64,
    #[prost(uint64, tag = "10")]
    received_rows: u64,
    #[prost(uint64, tag = "11")]
    sending_nanoseconds: u64,
    #[prost(uint64, tag = "12")]
    receiving_nanoseconds: u64,
}

impl From<Exchanged> for Counters {
    fn from(exchanged: Exchanged) -> Self {
        let Exchanged { across, within, .. } = exchanged;
        Self {
            rounds: exchanged.rounds,
            messages_across: across.messages,
            bytes_across: across.bytes,
            sent_bytes_across: across.sent_bytes,
            messages_within: within.messages,
            bytes_within: within.bytes,
            sent_bytes_within: within.sent_bytes,
            kept_rows: exchanged.kept_rows,
            sent_rows: exchanged.sent_rows,
            received_rows: exchanged.received_rows,
            sending_nanoseconds: exchanged.sending_wait.as_nanos() as u64,
            receiving_nanoseconds: exchanged.receiving_wait.as_nanos() as u64,
        }
    }
}

impl From<Counters> for Exchanged {
    fn from(counters: Counters) -> Self {
        let columns = |messages, bytes, sent_bytes| Columns { messages, bytes, sent_bytes };
        let Counters { messages_across, bytes_across, sent_bytes_across, .. } = counters;
        let Counters { messages_within, bytes_within, sent_bytes_within, .. } = counters;
        Self {
            rounds: counters.rounds,
            across: columns(messages_across, bytes_across, sent_bytes_across),
            within: columns(messages_within, bytes_within, sent_bytes_within),
            kept_rows: counters.kept_rows,
            sent_rows: counters.sent_rows,
            received_rows: counters.received_rows,
            sending_wait: Duration::from_nanos(counters.sending_nanoseconds),
            receiving_wait: Duration::from_nanos(counters.receiving_nanoseconds),
            // The exchanges of a query are those of the CPU.
            ..Self::default()
        }
    }
}

async fn send(job: &Job, to: Rank, number: StreamNumber, message: Vec<u8>) -> Result<()> {
    let mut sender = Sender::open(job, to, number);
    sender.send(Buffer::from_vec(message)).await.map_err(|error| of_exchange(&error))?;
    sender.end();
    Ok(())
}

async fn receive<M: Message + Default>(mut receiver: Receiver) -> Result<M> {
    let from = receiver.from();
    let message = receiver.next().await.transpose().map_err(|error| of_exchange(&error))?;
    let message = message.and_then(|message| M::decode(message.as_slice()).ok());
    message
        .ok_or_else(|| exec_datafusion_err!("rank {from} sent what is no message: all ranks must run the same version"))
}
