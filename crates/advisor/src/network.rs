//! The figures of a network: what ranks reach within a node and across nodes, and a codec for what crosses nodes.
//!
//! A rank is a GPU, or a process on some of a node's cores. All rates are those of one rank while all ranks are busy.

use serde::{Deserialize, Serialize};

/// The network between the ranks of a cluster, from a profile or from measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// The number of ranks on a node that is full.
    pub ranks_per_node: u32,
    /// Between ranks of a node.
    pub within: Level,
    /// Between ranks of different nodes; `None` if there is one node.
    #[serde(default)]
    pub across: Option<Level>,
    /// The compression of what crosses nodes; `None` if its rates are not known, and then it is not predicted.
    #[serde(default)]
    pub codec: Option<Codec>,
    /// Ranks that share the processors of a machine; `None` if they are those of a node. They differ where nodes are pretended.
    #[serde(default)]
    pub ranks_per_machine: Option<u32>,
    /// Bytes of rows per second that a rank without a GPU partitions; `None` if it does so as joins partition.
    #[serde(default)]
    pub partition: Option<f64>,
}

/// A level of a network.
///
/// A rank that sends `bytes` in `messages` takes
///
/// ```text
/// bytes / (bandwidth * all-to-all share) + messages * message + ceil(messages / in flight) * latency
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Its name.
    pub kind: String,
    /// Bytes per second that a rank sends to one other, while it receives as many.
    pub bandwidth: f64,
    /// The share of `bandwidth` that remains when all ranks send to all: contention. From 0 to 1.
    pub all_to_all_share: f64,
    /// Seconds from the start of a message without bytes to its arrival.
    pub latency: f64,
    /// The same between ranks of different rails, that is, of different places in their nodes (paper 4, section 5); `None`
    /// if the network has no rails.
    #[serde(default)]
    pub cross_rail_latency: Option<f64>,
    /// Seconds of a rank per message, beside its bytes and its latency.
    pub message: f64,
    /// The number of messages that a rank has under way at a time.
    pub in_flight: u32,
}

/// The compression of columns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Codec {
    /// Bytes per second that a rank compresses, counted uncompressed.
    pub compress: f64,
    /// Bytes per second that a rank decompresses, counted uncompressed.
    pub decompress: f64,
}

impl Level {
    /// A level from measurements, taken while all ranks send to all: bytes per second of a rank, seconds of a message without
    /// bytes from rank to rank, and seconds of a rank per message. The bandwidth then includes contention.
    ///
    /// One message is taken to be under way at a time; [`in_flight`](Self::in_flight) may be set to more.
    pub fn measured(kind: impl Into<String>, bandwidth: f64, latency: f64, message: f64) -> Self {
        Self {
            kind: kind.into(),
            bandwidth,
            all_to_all_share: 1.0,
            latency,
            cross_rail_latency: None,
            message,
            in_flight: 1,
        }
    }

    /// Seconds of a rank for its bytes.
    pub(crate) fn transfer(&self, bytes: f64) -> f64 {
        bytes / (self.bandwidth * self.all_to_all_share)
    }

    /// Seconds of a rank for `messages` messages, without their bytes.
    pub(crate) fn messages(&self, messages: f64, crosses_rails: bool) -> f64 {
        let latency = if crosses_rails { self.cross_rail_latency.unwrap_or(self.latency) } else { self.latency };
        messages * self.message + (messages / f64::from(self.in_flight.max(1))).ceil() * latency
    }
}
