//! The model's figures of a machine: rates of its processors, memories and link. All rates are for all processors together.

use std::collections::BTreeMap;

use overspill_machine::measure::RowWork;
use serde::{Deserialize, Serialize};

use crate::network::Network;
use crate::prediction::Refusal;

/// A machine with at most one GPU, from a profile or from measurements; a node of a cluster if it has a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The name on the command line.
    pub name: String,
    /// A description of one line.
    pub description: String,
    /// The sources of figures, by figure name, such as `gpu.random_writes`.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
    /// The processors that share the memory next to the GPU.
    pub cpu: Cpu,
    /// The GPU and its link.
    pub gpu: Option<Gpu>,
    /// Why there is no GPU, or why its figures are missing.
    #[serde(default)]
    pub no_gpu_because: Option<String>,
    /// The network to other GPUs and machines of the same kind; `None` if there is none.
    #[serde(default)]
    pub network: Option<Network>,
}

/// The processors of a machine and their memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// The model's name.
    pub model: String,
    /// The number of cores.
    pub cores: usize,
    /// The number of hardware threads of all cores.
    pub threads: usize,
    /// Bytes of a cache line.
    pub cache_line: u64,
    /// Bytes of the largest cache private to a core, or of its share of a shared one.
    pub core_cache: u64,
    /// Bytes of all caches of the last level.
    pub last_level_cache: u64,
    /// Bytes of memory; `None` if unknown, and then not checked.
    pub memory_bytes: Option<u64>,
    /// Bytes read in order, per second.
    pub read: f64,
    /// Bytes copied per second, each counted once.
    pub copy: f64,
    /// Independent random reads of memory, per second.
    pub random_reads: f64,
    /// Nanoseconds between dependent reads of memory.
    pub latency: f64,
    /// How `read` and `copy` fall with the size of the data; `None` if they do not.
    #[serde(default)]
    pub large_data: Option<LargeData>,
    /// Seconds per row that a thread takes without waiting for memory.
    pub row_work: RowWork,
    /// Seconds per row that a thread takes to look it up in a table that all threads share and that exceeds their private
    /// caches; `None` if it is the same as in their private caches.
    #[serde(default)]
    pub shared_lookup: Option<f64>,
}

/// The fall of sequential rates with the size of the data (paper 1, section 6.2.8).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargeData {
    /// Bytes up to which the full rates hold.
    pub from_bytes: f64,
    /// Bytes from which on rates fall to `share`. In between, the share falls with the logarithm of the size.
    pub to_bytes: f64,
    /// The remaining share of the rates, from 0 to 1.
    pub share: f64,
}

/// A GPU and its link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The model's name.
    pub model: String,
    /// Bytes of GPU memory available to a program.
    pub memory_bytes: u64,
    /// Bytes of GPU memory read in order, per second.
    pub bandwidth: f64,
    /// Random reads of a few bytes of GPU memory, per second.
    pub random_reads: f64,
    /// Random writes of a few bytes; `None` if not measured.
    pub random_writes: Option<f64>,
    /// Bytes of its L2 cache.
    pub l2_bytes: u64,
    /// Random reads per second of data in the L2 cache; `None` if unknown, and then the rate of the memory applies.
    #[serde(default)]
    pub l2_random_reads: Option<f64>,
    /// The number of multiprocessors.
    pub multiprocessors: u32,
    /// The clock of the multiprocessors, in hertz.
    pub clock: f64,
    /// Bytes of scratchpad available to a block.
    pub scratchpad_bytes: u64,
    /// Seconds between kernel launches; `None` if not measured.
    pub launch: Option<f64>,
    /// The link to CPU memory.
    pub link: Link,
}

/// The link between a GPU and the CPU's memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its name.
    pub kind: String,
    /// Bytes per second from CPU memory.
    pub read: f64,
    /// Bytes per second to CPU memory.
    pub write: f64,
    /// Bytes per second of both directions together, when both are busy.
    pub both: f64,
    /// Random reads of a few bytes of CPU memory by the GPU, per second.
    pub random_reads: f64,
    /// Random writes of a few bytes; `None` if not measured.
    pub random_writes: Option<f64>,
    /// Bytes of a link transaction, which is transferred if any byte of it is read.
    pub transaction_bytes: u64,
    /// Whether the GPU reads pageable memory, and sees the CPU's writes.
    pub coherent: bool,
    /// Whether atomic operations on CPU memory are atomic for both processors.
    pub system_atomics: bool,
    /// The reach of the GPU's translation buffers in CPU memory; `None` if unknown, and then random rates hold everywhere.
    #[serde(default)]
    pub translation: Option<Translation>,
}

/// Address translation of a GPU's random accesses to CPU memory (paper 1, section 3.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Translation {
    /// Bytes for which random rates hold.
    pub near_bytes: f64,
    /// The slowdown of an access beyond `near_bytes`.
    pub far_slowdown: f64,
    /// Bytes up to which `far_slowdown` holds.
    pub far_bytes: f64,
    /// Accesses per second to ranges beyond `far_bytes`, where each access requests a translation from the CPU; `None` if
    /// unknown, and then such accesses are not predicted.
    pub misses: Option<f64>,
    /// The same for reads of keys that are looked up in an index; `None` if the rate is that of `misses`.
    #[serde(default)]
    pub read_misses: Option<f64>,
}

impl Machine {
    /// The GPU, or why there is none.
    pub(crate) fn gpu_or_why(&self) -> Result<&Gpu, Refusal> {
        self.gpu.as_ref().ok_or_else(|| Refusal::NoGpu {
            because: self.no_gpu_because.clone().unwrap_or_else(|| format!("{} has none", self.name)),
        })
    }
}

impl Cpu {
    /// The remaining share of `read` and `copy` for data of `data_bytes` bytes.
    pub(crate) fn share_for(&self, data_bytes: f64) -> f64 {
        let Some(LargeData { from_bytes, to_bytes, share }) = self.large_data else { return 1.0 };
        let way = ((data_bytes.max(1.0) / from_bytes).ln() / (to_bytes / from_bytes).ln()).clamp(0.0, 1.0);
        1.0 - way * (1.0 - share)
    }

    /// The processors with the rates for data of `data_bytes` bytes.
    pub(crate) fn with_data(&self, data_bytes: f64) -> Self {
        let share = self.share_for(data_bytes);
        Self { read: self.read * share, copy: self.copy * share, ..self.clone() }
    }
}
