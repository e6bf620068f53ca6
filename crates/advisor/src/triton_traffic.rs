//! The link traffic of the Triton join.

use serde::Serialize;

use crate::prediction::LinkBytes;

/// The processor that counts the keys of each partition before the first pass (paper 1, section 6.2.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefixSumProcessor {
    /// The CPU, which reads the key columns in its own memory while the GPU runs other work.
    Cpu,
    /// The GPU, which gets the key columns once more.
    Gpu,
}

impl PrefixSumProcessor {
    /// Both processors.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Gpu];

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
        }
    }
}

/// Bytes that the Triton join moves over the link, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TritonTraffic {
    /// To the GPU: key columns, for a prefix sum on the GPU.
    pub keys: f64,
    /// To the GPU: the base relations, in the first pass.
    pub base_relations: f64,
    /// To the CPU: partitions that GPU memory does not cache, in the first pass.
    pub spilled: f64,
    /// To the GPU: spilled partitions, in the second pass.
    pub spilled_again: f64,
    /// To the CPU: results.
    pub results: f64,
}

impl TritonTraffic {
    /// The bytes per direction.
    pub fn link_bytes(&self) -> LinkBytes {
        LinkBytes { to_gpu: self.keys + self.base_relations + self.spilled_again, to_cpu: self.spilled + self.results }
    }
}

/// Bytes that a Triton join (paper 1, section 5) moves over the link.
///
/// Base relations lie in CPU memory in columns. The first pass reads all of both. Before it, a prefix sum on the GPU reads
/// the key columns (`key_bytes` of both sides together) once more. The share `cached_share` (0 to 1) of the partitioned copy
/// stays in GPU memory, with its pages interleaved with those of the rest. The rest is written to CPU memory, and read again
/// in the second pass. Results are written to CPU memory. Without results and with a prefix sum on the CPU, the traffic is
/// between one and three times the size of the relations.
///
/// ```
/// use overspill_advisor::{PrefixSumProcessor, triton_link_bytes};
///
/// let traffic = triton_link_bytes(4e9, 4e9, 4e9, 0.75, PrefixSumProcessor::Cpu, 0.0);
/// assert_eq!(traffic.link_bytes().to_gpu, 10e9);
/// assert_eq!(traffic.link_bytes().to_cpu, 2e9);
/// ```
pub fn triton_link_bytes(
    build_bytes: f64,
    probe_bytes: f64,
    key_bytes: f64,
    cached_share: f64,
    prefix_sum: PrefixSumProcessor,
    result_bytes: f64,
) -> TritonTraffic {
    let base_relations = build_bytes + probe_bytes;
    let spilled = base_relations * (1.0 - cached_share.clamp(0.0, 1.0));
    let keys = match prefix_sum {
        PrefixSumProcessor::Cpu => 0.0,
        PrefixSumProcessor::Gpu => key_bytes,
    };
    TritonTraffic { keys, base_relations, spilled, spilled_again: spilled, results: result_bytes }
}
