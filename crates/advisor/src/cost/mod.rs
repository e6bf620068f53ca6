//! The cost of each strategy on a machine.

pub(crate) mod cooperative;
pub(crate) mod cpu;
pub(crate) mod gpu_no_partition;
pub(crate) mod index;
pub(crate) mod link;
pub(crate) mod partitioned;
pub(crate) mod repartitioned;

use crate::join::Join;
use crate::machine::{Cpu, Gpu};
pub(crate) use crate::prediction::Cost;
use crate::prediction::Refusal;

/// A machine during a join: its processors, slowed by the size of the data, and the join's share of the GPU.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    pub(crate) cpu: Cpu,
    /// CPU memory bandwidth in bytes per second. The size of the data does not reduce it for the GPU (paper 1, section 6.2.6:
    /// 55.9 GiB/s each way of 60 GiB).
    pub(crate) memory: f64,
    pub(crate) threads: usize,
    pub(crate) gpu: Result<&'a Gpu, Refusal>,
    pub(crate) join: &'a Join,
}

impl Site<'_> {
    pub(crate) fn gpu(&self) -> Result<&Gpu, Refusal> {
        self.gpu.clone()
    }

    /// Bytes of GPU memory available to the join.
    pub(crate) fn gpu_memory(&self, gpu: &Gpu) -> f64 {
        self.join.gpu_memory_limit.map_or(gpu.memory_bytes, |limit| limit.min(gpu.memory_bytes)) as f64
    }

    /// Refuses a strategy that needs more CPU memory than the machine has.
    pub(crate) fn check_cpu_memory(&self, what: &'static str, needed: f64) -> Result<(), Refusal> {
        match self.cpu.memory_bytes.map(|bytes| bytes as f64) {
            Some(limit) if needed > limit => Err(Refusal::CpuMemory { what, needed, limit }),
            _ => Ok(()),
        }
    }
}

/// Seconds between launches.
pub(crate) fn launch(gpu: &Gpu) -> Result<f64, Refusal> {
    gpu.launch.ok_or(Refusal::NotMeasured { figure: "how long the GPU takes to launch a kernel" })
}

/// The maximum of `times`.
pub(crate) fn longest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// The efficiency of a write-combining partitioner with `doublings` doublings of the fanout beyond what the memory for its
/// buffers supports. Each doubling costs 8.2 %.
///
/// Hierarchical partitions at 54 GiB/s up to the fanout at which a buffer still holds a warp of tuples, and at 38.3 GiB/s
/// when it holds two (paper 1, section 6.2.6): (38.3 / 54)^(1/4) = 0.918. The CPU's partitioner loses as much in its caches:
/// 22 % from fanout 2^12 to 2^14 (paper 1, section 6.2.1), about half of it due to partitioning.
pub(crate) fn buffering_efficiency(doublings: f64) -> f64 {
    0.918f64.powf(doublings.max(0.0))
}
