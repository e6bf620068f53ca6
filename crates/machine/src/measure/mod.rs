//! What the machine's memories really deliver: measured, not told.
//!
//! Every figure is the best of a few runs, as other programs only ever make one slower, over memory that was touched before.

mod chain;
mod cpu;
mod store;

use serde::{Deserialize, Serialize};

pub use chain::{Chain, LatencyCurve, LatencyPoint};
pub use cpu::{CpuEffort, MemoryBounds, measure_bounds, measure_cpu};

use crate::memory::{PageSize, Placement};
use crate::transfer::TransferRates;

/// Who reads and writes.
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

/// What is read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredMemory {
    /// CPU memory.
    Host {
        /// The NUMA node.
        node: usize,
        /// The pages asked for.
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
    /// Where a buffer in this memory lies.
    pub fn placement(self) -> Placement {
        match self {
            Self::Host { pages, pinned, .. } => Placement::Host { pages, pinned },
            Self::Gpu { .. } => Placement::Device,
        }
    }
}

/// How fast a processor uses a memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MemoryRates {
    /// Who.
    pub processor: Processor,
    /// What.
    pub memory: MeasuredMemory,
    /// Bytes a second, read in order.
    pub read: f64,
    /// Bytes a second that are copied within the memory, each counted once.
    pub copy: f64,
    /// Independent reads of 8 bytes at random places, a second.
    pub random_reads: f64,
    /// Nanoseconds from one read of a chain to the next, at random places.
    pub latency: f64,
}

/// What a probe row of a join costs one processor that does not wait for memory, in seconds. The floor that joins measures it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RowWork {
    /// Writing it to its partition.
    pub partition: f64,
    /// Looking it up in a part of a hash table that the processor's own cache has.
    pub lookup: f64,
}

/// What a GPU does that its reads do not tell. Random writes are several times slower (paper 1, section 6.2.9).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GpuWork {
    /// The GPU's number.
    pub ordinal: usize,
    /// Independent writes of 8 bytes at random places of its memory, a second.
    pub random_writes: f64,
    /// The same of CPU memory.
    pub random_host_writes: f64,
    /// Seconds from one launch of a kernel to the next, if the kernel does nothing.
    pub launch: f64,
}

/// All that was measured of a machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurements {
    /// For each pair of a processor and a memory that it reads.
    pub rates: Vec<MemoryRates>,
    /// How latency grows with the range that is touched (paper 1, fig. 7).
    pub latency: Vec<LatencyCurve>,
    /// For each GPU, by its number, the transfer methods that it has.
    pub transfers: Vec<TransferRates>,
    /// What joining costs where memory does not bound it; `None` until it is measured.
    pub row_work: Option<RowWork>,
    /// What GPUs do beside reading; none of a GPU for which it was not measured.
    #[serde(default)]
    pub gpu_work: Vec<GpuWork>,
}

impl Measurements {
    /// The largest range, in bytes, whose latency on small pages is at most a quarter more than on huge pages: beyond it,
    /// small pages cost translations that huge pages do not.
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
