//! What a join asks of a GPU, and who is told what became of it.

use std::fmt::Debug;
use std::sync::Arc;

use overspill_kernels::Algorithm;
use overspill_machine::transfer::TransferMethod;

use super::gpu::Gpu;
use crate::selection::Aggregate;

/// How a GPU joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GpuStrategy {
    /// One hash table in GPU memory, or as far as it goes; probe rows are streamed past it (paper 2, section 5).
    NoPartition,
    /// Both sides are radix-partitioned by the GPU, in CPU memory as far as GPU memory does not go, until a pair of partitions
    /// fits the scratchpad (paper 1, section 5).
    Triton,
    /// The CPU cuts both sides into partitions that fit GPU memory; the GPU does the rest (paper 1, section 3.1).
    CpuPartitioned,
    /// One hash table in CPU memory, in which CPU and GPU look probe rows up (paper 2, section 6.2).
    Het,
    /// The same with a table in GPU memory, and a copy of it in the CPU's.
    GpuHet,
}

impl GpuStrategy {
    /// The name, as settings and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoPartition => "gpu_no_partition",
            Self::Triton => "triton",
            Self::CpuPartitioned => "cpu_partitioned",
            Self::Het => "het",
            Self::GpuHet => "gpu_het",
        }
    }

    /// Whether probe rows look into a hash table as they come.
    pub(crate) fn streams_probe_rows(self) -> bool {
        matches!(self, Self::NoPartition | Self::Het | Self::GpuHet)
    }
}

/// The processor that counts the keys of each partition before the first pass of `triton` (paper 1, section 6.2.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixSumProcessor {
    /// The CPU, which reads keys in its own memory while the GPU works for others.
    Cpu,
    /// The GPU, to which keys come once more.
    Gpu,
}

/// What is counted of joins on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceCount {
    /// Build sides that a GPU joined without partitioning.
    NoPartitionJoins,
    /// Build sides that a GPU partitioned.
    TritonJoins,
    /// Build sides that the CPU partitioned for a GPU.
    CpuPartitionedJoins,
    /// Build sides in a hash table in CPU memory that both processors read.
    HetJoins,
    /// Build sides in a hash table in GPU memory of which the CPU has a copy.
    GpuHetJoins,
    /// Build rows in tables and partitions that kernels read.
    BuildRows,
    /// Probe rows whose pairs were aggregated by kernels and are no output rows.
    AggregatedRows,
    /// Probe rows that were meant for a GPU and joined by the CPU, as the GPU could not or failed.
    ReturnedRows,
    /// Probe rows that the CPU joined as its share of a join of both processors.
    SharedRows,
    /// Build sides, and chunks of the probe side, whose keys the CPU counted for the first pass of `triton`.
    CpuPrefixSums,
    /// Bytes that crossed the link between CPU and GPU memory, by the sizes of what was read and written.
    LinkBytes,
    /// Bytes of hash tables and partitions.
    StateBytes,
    /// Bytes of hash tables and partitions that lay in CPU memory, as GPU memory did not suffice.
    SpilledBytes,
}

/// Whoever shows what became of joins on a GPU.
pub trait DeviceObserver: Debug + Send + Sync {
    /// So many more.
    fn add(&self, what: DeviceCount, number: u64);
    /// Kernels of the GPU of this number have looked up so many more probe rows.
    fn probed(&self, gpu: usize, rows: u64);
    /// A strategy was not possible, for this reason; another is taken.
    fn refused(&self, strategy: GpuStrategy, reason: &str);
    /// A strategy was taken, but not all of it was possible, for this reason.
    fn noted(&self, strategy: GpuStrategy, reason: &str);
    /// The GPU failed, for this reason; the CPU goes on.
    fn failed(&self, strategy: GpuStrategy, reason: &str);
}

/// Whoever chooses how a GPU joins, once the build side is known.
pub trait StrategyAdvisor: Debug + Send + Sync {
    /// Strategies in the order in which they are to be tried, for a build side of so many rows whose keys have a slot each or
    /// few more (`is_dense`) or are spread out; none if the CPU is to join.
    fn strategies(&self, build_rows: u64, is_dense: bool) -> Vec<GpuStrategy>;
}

/// What a join asks of a GPU.
#[derive(Debug, Clone)]
pub struct DeviceRequest {
    /// Which; it knows those that join with it.
    pub gpu: Arc<Gpu>,
    /// Who chooses how.
    pub advisor: Arc<dyn StrategyAdvisor>,
    /// Whether a hash table may lie in CPU memory as far as GPU memory does not go.
    pub tables_may_span: bool,
    /// How probe rows reach a hash table; `None` for the method that suits the link.
    pub transfer: Option<TransferMethod>,
    /// The share of a partitioned relation that is cached in GPU memory where there is room for all of it: a little less than
    /// all is faster, as GPU memory and the link together give more bandwidth (paper 1, section 6.2.7).
    pub cached_share: f64,
    /// What kernels may aggregate pairs to, where these are wanted for nothing else: columns are those of the output.
    pub aggregates: Option<Arc<[Aggregate]>>,
    /// Who counts keys before the first pass of `triton`.
    pub prefix_sum: PrefixSumProcessor,
    /// Who is told.
    pub observer: Arc<dyn DeviceObserver>,
    /// What experiments vary.
    pub tuning: DeviceTuning,
}

/// What of a strategy an experiment varies; everybody else takes the default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceTuning {
    /// How the first pass of `triton` partitions; `None` for Hierarchical, and Shared where its second level finds no room.
    pub first_pass: Option<Algorithm>,
    /// The share of a hash table that lies in GPU memory where there is room for all of it. What is left takes
    /// [`DeviceRequest::tables_may_span`].
    pub table_share: f64,
}

impl Default for DeviceTuning {
    fn default() -> Self {
        Self { first_pass: None, table_share: 1.0 }
    }
}

impl DeviceRequest {
    /// How probe rows reach a hash table that this GPU reads.
    pub(crate) fn transfer_method(&self, gpu: &Gpu) -> TransferMethod {
        self.transfer.unwrap_or_else(|| gpu.fastest_method())
    }

    /// Tells of an error, which is a refusal if it is a matter of room or of what the device has.
    pub(crate) fn report(&self, strategy: GpuStrategy, error: &overspill_machine::Error) {
        self.gpu.note(error);
        let reason = error.to_string();
        if is_refusal(error) {
            self.observer.refused(strategy, &reason);
        } else {
            self.observer.failed(strategy, &reason);
        }
    }
}

/// Whether an error is a matter of room or of what the device has.
pub(crate) fn is_refusal(error: &overspill_machine::Error) -> bool {
    use overspill_machine::Error;
    matches!(
        error,
        Error::OverBudget { .. }
            | Error::OutOfDeviceMemory { .. }
            | Error::OutOfHostMemory { .. }
            | Error::TooSmall { .. }
            | Error::Unsupported { .. }
            | Error::NoPeerAccess { .. }
            | Error::TransferRefused { .. }
    )
}
