//! What the model knows of a machine: rates of its processors, memories and link. All rates are of all processors
//! together.

use std::collections::BTreeMap;

use overspill_machine::measure::RowWork;
use serde::{Deserialize, Serialize};

/// A machine with at most one GPU, as a profile tells it or as it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What it is called on the command line.
    pub name: String,
    /// What it is, in a line.
    pub description: String,
    /// Where figures come from, by their names, such as `gpu.random_writes`.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
    /// The processors that share the memory next to the GPU.
    pub cpu: Cpu,
    /// The GPU, with its link.
    pub gpu: Option<Gpu>,
    /// Why there is none, or why nothing can be said of it.
    #[serde(default)]
    pub no_gpu_because: Option<String>,
}

/// The processors of a machine and their memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// The model's name.
    pub model: String,
    /// Cores.
    pub cores: usize,
    /// Hardware threads of all cores.
    pub threads: usize,
    /// Bytes of a cache line.
    pub cache_line: u64,
    /// Bytes of the largest cache that a core has to itself, or of its share of one.
    pub core_cache: u64,
    /// Bytes of all caches of the last level.
    pub last_level_cache: u64,
    /// Bytes of memory; none if it is not known, and then not checked.
    pub memory_bytes: Option<u64>,
    /// Bytes a second, read in order.
    pub read: f64,
    /// Bytes a second that are copied, each counted once.
    pub copy: f64,
    /// Independent reads at random places of memory, a second.
    pub random_reads: f64,
    /// Nanoseconds from one dependent read of memory to the next.
    pub latency: f64,
    /// How `read` and `copy` fall with the size of the data that is gone through; none if they do not.
    #[serde(default)]
    pub large_data: Option<LargeData>,
    /// Seconds that a row costs a thread that does not wait for memory.
    pub row_work: RowWork,
    /// Seconds that a row costs a thread to be looked up in a table that all threads share and that is larger than
    /// their own caches; none if that is what it costs in their own caches.
    #[serde(default)]
    pub shared_lookup: Option<f64>,
}

/// A fall of sequential rates with the size of the data (paper 1, section 6.2.8).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargeData {
    /// Bytes up to which the rates hold.
    pub from_bytes: f64,
    /// Bytes from which on `share` of them is left; between the two the share falls with the logarithm of the size.
    pub to_bytes: f64,
    /// From 0 to 1.
    pub share: f64,
}

/// A GPU and the link that it is reached by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The model's name.
    pub model: String,
    /// Bytes of its memory that a program may have.
    pub memory_bytes: u64,
    /// Bytes a second of its memory, read in order.
    pub bandwidth: f64,
    /// Reads of a few bytes at random places of its memory, a second.
    pub random_reads: f64,
    /// Writes of the same kind; none if not measured.
    pub random_writes: Option<f64>,
    /// Bytes of its L2 cache.
    pub l2_bytes: u64,
    /// Random reads a second of what the L2 cache holds; none if not known, and then those of the memory.
    #[serde(default)]
    pub l2_random_reads: Option<f64>,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Their clock, in hertz.
    pub clock: f64,
    /// Bytes of scratchpad that a block may have.
    pub scratchpad_bytes: u64,
    /// Seconds from one launch of a kernel to the next; none if not measured.
    pub launch: Option<f64>,
    /// The way to the CPU's memory.
    pub link: Link,
}

/// The link between a GPU and the CPU's memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its name.
    pub kind: String,
    /// Bytes a second from the CPU's memory.
    pub read: f64,
    /// Bytes a second to the CPU's memory.
    pub write: f64,
    /// Bytes a second of both directions together, when both are busy.
    pub both: f64,
    /// Reads of a few bytes by the GPU at random places of CPU memory, a second.
    pub random_reads: f64,
    /// Writes of the same kind; none if not measured.
    pub random_writes: Option<f64>,
    /// Bytes of a transaction on the link: what is brought if a byte of it is read.
    pub transaction_bytes: u64,
    /// Whether the GPU reads pageable memory, and sees what the CPU writes.
    pub coherent: bool,
    /// Whether atomic operations on CPU memory are atomic for both processors.
    pub system_atomics: bool,
    /// How far the GPU's translation buffers reach in CPU memory; none if nothing is known, and then random rates hold
    /// everywhere.
    #[serde(default)]
    pub translation: Option<Translation>,
}

/// Address translation of a GPU's random accesses to CPU memory (paper 1, section 3.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Translation {
    /// Bytes that random rates hold for.
    pub near_bytes: f64,
    /// How many times as long an access takes that lies beyond `near_bytes`.
    pub far_slowdown: f64,
    /// Bytes up to which that is so.
    pub far_bytes: f64,
    /// Accesses a second to ranges beyond `far_bytes`, each of which asks the CPU for a translation; none if not known,
    /// and then nothing is said of such accesses.
    pub misses: Option<f64>,
}

impl Cpu {
    /// The share of `read` and `copy` that is left for data of so many bytes.
    pub(crate) fn share_for(&self, data_bytes: f64) -> f64 {
        let Some(LargeData { from_bytes, to_bytes, share }) = self.large_data else { return 1.0 };
        let way = ((data_bytes.max(1.0) / from_bytes).ln() / (to_bytes / from_bytes).ln()).clamp(0.0, 1.0);
        1.0 - way * (1.0 - share)
    }

    /// The processors when data of so many bytes is gone through.
    pub(crate) fn with_data(&self, data_bytes: f64) -> Self {
        let share = self.share_for(data_bytes);
        Self { read: self.read * share, copy: self.copy * share, ..self.clone() }
    }
}
