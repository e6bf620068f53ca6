//! Rates of processes that exchange rows.

use serde::{Deserialize, Serialize};

/// The rates of the ranks of a job, which exchange rows. Measured by the layer that exchanges them.
///
/// Every rate is that of the slowest rank while all ranks do the same.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NetworkRates {
    /// The number of ranks.
    pub ranks: u32,
    /// Ranks of a node, on the fullest one.
    pub ranks_per_node: u32,
    /// Ranks that share the processors of a machine. They are more than those of a node if nodes are pretended.
    pub ranks_per_machine: u32,
    /// Between ranks of a node; `None` if each is alone on its node.
    pub within: Option<LevelRates>,
    /// Between ranks of different nodes; `None` if there is one node.
    pub across: Option<LevelRates>,
    /// Bytes of rows per second that a rank partitions by a hash of their key.
    pub partition: f64,
    /// Compression of what crosses nodes; `None` if there is one node.
    pub codec: Option<CodecRates>,
}

/// What ranks reach between each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LevelRates {
    /// Bytes per second that a rank sends to all others, while it receives as many.
    pub bytes_per_second: f64,
    /// Seconds from the start of a small message to its arrival.
    pub latency: f64,
    /// Seconds of a rank for each message, where it sends many small ones to all others.
    pub message: f64,
}

/// How fast a rank compresses keys that are in order, with others at work.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CodecRates {
    /// Bytes per second, counted uncompressed.
    pub compress: f64,
    /// The same to decompress them.
    pub decompress: f64,
}

impl NetworkRates {
    /// Whether other rates are of a cluster of the same kind, perhaps of another size: on one node, or on nodes with as many ranks.
    pub fn is_like(&self, other: &Self) -> bool {
        match (&self.across, &other.across) {
            (None, None) => true,
            (Some(_), Some(_)) => self.ranks_per_node == other.ranks_per_node,
            _ => false,
        }
    }
}
