//! The real performance of the machine's memories: measured, not reported by the system.
//!
//! Every figure is the best of a few runs, as other programs only ever slow a run down. The memory is touched before it is
//! measured.

mod chain;
mod cpu;
mod network;
mod store;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use chain::{Chain, LatencyCurve, LatencyPoint};
pub use cpu::{CpuEffort, MemoryBounds, measure_bounds, measure_cpu};
pub use network::{CodecRates, LevelRates, NetworkRates};

use crate::memory::{PageSize, Placement};
use crate::transfer::TransferRates;

/// The processor that reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Processor {
    /// All threads of the processors of a NUMA node.
    Cpu {
        /// Its number.
        node: usize,
    },
    /// All multiprocessors of a GPU.
    Gpu {
        /// Its number.
        ordinal: usize,
    },
}

/// The memory that is read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredMemory {
    /// CPU memory.
    Host {
        /// The NUMA node.
        node: usize,
        /// The requested page size.
        pages: PageSize,
        /// Whether it is registered with the GPU's driver.
        pinned: bool,
    },
    /// Memory of a GPU.
    Gpu {
        /// Its number.
        ordinal: usize,
    },
}

impl MeasuredMemory {
    /// The placement of a buffer in this memory.
    pub fn placement(self) -> Placement {
        match self {
            Self::Host { pages, pinned, .. } => Placement::Host { pages, pinned },
            Self::Gpu { .. } => Placement::Device,
        }
    }
}

/// The rates at which a processor uses a memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MemoryRates {
    /// The processor.
    pub processor: Processor,
    /// The memory.
    pub memory: MeasuredMemory,
    /// Bytes read in order per second.
    pub read: f64,
    /// Bytes copied within the memory per second, each counted once.
    pub copy: f64,
    /// Independent reads of 8 bytes at random places per second.
    pub random_reads: f64,
    /// Nanoseconds from one read of a chain to the next, at random places.
    pub latency: f64,
}

/// CPU cost of a probe row of a join on one processor, without waiting for memory, in seconds. Measured by the layer that
/// joins.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RowWork {
    /// Writing the row to its partition.
    pub partition: f64,
    /// Looking up the row in a part of a hash table that is in the processor's private cache.
    pub lookup: f64,
}

/// Rates of a GPU that its reads do not predict. Random writes are several times slower (paper 1, section 6.2.9).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GpuWork {
    /// The GPU's number.
    pub ordinal: usize,
    /// Independent writes of 8 bytes at random places of the GPU's memory per second.
    pub random_writes: f64,
    /// The same for CPU memory.
    pub random_host_writes: f64,
    /// Seconds from one launch of an empty kernel to the next.
    pub launch: f64,
}

/// What queries cost on this machine. Measured by the layer that runs them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueryWork {
    /// Nanoseconds of a thread for each row, by the name of a kind of operator (paper 5, section 4.2).
    pub operators: BTreeMap<String, f64>,
    /// How many times as much several queries at once do on the CPU as one alone.
    pub overlap: f64,
    /// Queries on the GPU; `None` if there was none.
    pub gpu: Option<GpuQueries>,
}

/// Queries at the same time on a GPU (paper 5, sections 2.3 and 5).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GpuQueries {
    /// How many times as long a join took as the rates of the machine say. More, if memory has to be copied first, or few rows wait for it.
    #[serde(default = "as_predicted")]
    pub join_cost: f64,
    /// The same for a filter with aggregates.
    #[serde(default = "as_predicted")]
    pub aggregate_cost: f64,
    /// The share of its throughput that is lost to each further join.
    pub join_loss: f64,
    /// The same for filters with aggregates.
    pub aggregate_loss: f64,
    /// The most joins at the same time, up to 8, that end no later than on the CPU.
    pub joins: usize,
    /// The same for filters with aggregates.
    pub aggregates: usize,
    /// The same for as many of one as of the other.
    pub both: usize,
}

/// The cost of what was not measured.
fn as_predicted() -> f64 {
    1.0
}

/// All measurements of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    /// Rates for each pair of a processor and a memory that it reads.
    pub rates: Vec<MemoryRates>,
    /// Latency by range of accesses (paper 1, fig. 7).
    pub latency: Vec<LatencyCurve>,
    /// For each GPU, by number, the rates of the transfer methods that it supports.
    pub transfers: Vec<TransferRates>,
    /// Cost of joining if memory is not the bottleneck; `None` until it is measured.
    pub row_work: Option<RowWork>,
    /// Rates of GPUs other than reads. GPUs without measurements have no entry.
    #[serde(default)]
    pub gpu_work: Vec<GpuWork>,
    /// What queries cost; `None` until it is measured.
    #[serde(default)]
    pub query_work: Option<QueryWork>,
    /// Rates of ranks that exchange rows, the latest measurement last; one for each number of ranks, on each number of nodes.
    #[serde(default)]
    pub networks: Vec<NetworkRates>,
}

impl Measurements {
    /// Adds the rates of ranks, in place of older ones of as many ranks on as many nodes.
    pub fn add_network(&mut self, rates: NetworkRates) {
        let size = |rates: &NetworkRates| (rates.ranks, rates.ranks_per_node);
        self.networks.retain(|older| size(older) != size(&rates));
        self.networks.push(rates);
    }

    /// Returns the largest range in bytes for which the latency on small pages is at most a quarter above that on huge pages.
    /// Beyond it, small pages cost translations that huge pages do not.
    pub fn small_page_reach(&self, processor: Processor) -> Option<u64> {
        let curve = |wanted: PageSize| {
            self.latency.iter().find(|curve| {
                curve.processor == processor
                    && matches!(curve.memory, MeasuredMemory::Host { pages, .. } if pages == wanted)
            })
        };
        let (small, huge) = (curve(PageSize::Small)?, curve(PageSize::Huge)?);
        let close = small
            .points
            .iter()
            .zip(&huge.points)
            .take_while(|(small, huge)| small.range == huge.range && small.nanoseconds <= huge.nanoseconds * 1.25);
        close.last().map(|(small, _)| small.range)
    }
}

#[cfg(test)]
mod tests;
