//! What a join requests from a GPU, and the observer of its results.

use std::fmt::Debug;
use std::sync::Arc;

use overspill_advisor::{PrefixSumProcessor, Strategy};
use overspill_kernels::Algorithm;
use overspill_machine::transfer::TransferMethod;
use overspill_machine::{Error, Result};

use super::gpu::{Gpu, Turn};
use super::link::LinkCompressor;
use super::turns::DeviceShare;
use overspill_join::selection::Aggregate;

/// Counters of joins on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceCount {
    /// Build sides that a GPU joined by a strategy.
    Joins(Strategy),
    /// Build rows in tables and partitions that kernels read.
    BuildRows,
    /// Probe rows whose pairs were aggregated by kernels and are not output rows.
    AggregatedRows,
    /// Joins that have left the GPU because their query's share was taken back.
    Moves,
    /// Probe rows that were intended for a GPU but joined by the CPU, because the GPU could not join them, failed, or was given to
    /// other queries.
    ReturnedRows,
    /// Probe rows that the CPU joined as its share of a join of both processors.
    SharedRows,
    /// Build sides, and chunks of the probe side, whose keys the CPU counted for the first pass of `triton`.
    CpuPrefixSums,
    /// Bytes that crossed the link between CPU and GPU memory, computed from the sizes of the data read and written.
    LinkBytes,
    /// Bytes that did not cross the link because others crossed it compressed.
    SavedLinkBytes,
    /// Bytes of hash tables and partitions.
    StateBytes,
    /// Bytes of hash tables and partitions in CPU memory, because GPU memory was too small.
    SpilledBytes,
    /// Nanoseconds in which memory was provided for tables and partitions that lie in both memories: mapping, or finding mapped
    /// memory again.
    MappingTime,
}

/// Receives counts and errors of joins on a GPU.
pub trait DeviceObserver: Debug + Send + Sync {
    /// Adds `number` to the counter `what`.
    fn add(&self, what: DeviceCount, number: u64);
    /// Called after kernels of the GPU with ordinal `gpu` have probed `rows` more rows.
    fn probed(&self, gpu: usize, rows: u64);
    /// Called if a strategy was not possible, with the reason; another strategy is used.
    fn refused(&self, strategy: Strategy, reason: &str);
    /// Called if a strategy is used but part of it was not possible, with the reason.
    fn noted(&self, strategy: Strategy, reason: &str);
    /// Called if the GPU failed, with the reason; the CPU continues.
    fn failed(&self, strategy: Strategy, reason: &str);
    /// Returns the reason that is reported for an error. An observer may add advice.
    fn reason(&self, error: &Error) -> String {
        error.to_string()
    }
}

/// Chooses how a GPU joins, once the build side is known.
pub trait StrategyAdvisor: Debug + Send + Sync {
    /// Returns the strategies to try, in order, for a build side of `build_rows` rows; none if the CPU should join. `is_dense`
    /// means that a table with one slot per possible key needs at most a few slots per row.
    fn strategies(&self, build_rows: u64, is_dense: bool) -> Vec<Strategy>;
}

/// A join's request to a GPU.
#[derive(Debug, Clone)]
pub struct DeviceRequest {
    /// The GPU. It knows its peers that join with it.
    pub gpu: Arc<Gpu>,
    /// The query's share of it.
    pub share: Arc<DeviceShare>,
    /// Chooses the strategy.
    pub advisor: Arc<dyn StrategyAdvisor>,
    /// Whether the part of a hash table that does not fit GPU memory may be placed in CPU memory.
    pub tables_may_span: bool,
    /// How probe rows are transferred to a hash table; `None` selects the fastest method for the link.
    pub transfer: Option<TransferMethod>,
    /// How rows are compressed that the strategies GpuNoPartition and CpuPartitioned transfer by the fastest method.
    pub compressor: Arc<LinkCompressor>,
    /// The share of a partitioned relation to cache in GPU memory if there is room for all of it. Slightly less than all is
    /// faster, as GPU memory and the link together have more bandwidth (paper 1, section 6.2.7).
    pub cached_share: f64,
    /// Aggregates that kernels may compute if the pairs are needed for nothing else. Columns are output columns of the join.
    pub aggregates: Option<Arc<[Aggregate]>>,
    /// The processor that counts keys before the first pass of `triton`.
    pub prefix_sum: PrefixSumProcessor,
    /// Receives the counts and errors.
    pub observer: Arc<dyn DeviceObserver>,
    /// Parameters that experiments vary.
    pub tuning: DeviceTuning,
}

/// Parameters of a strategy that experiments vary; everything else uses the defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceTuning {
    /// Algorithm of the first pass of `triton`. `None` selects Hierarchical, or Shared if there is no room for Hierarchical's
    /// second level.
    pub first_pass: Option<Algorithm>,
    /// The share of a hash table to place in GPU memory if there is room for all of it. The remainder requires
    /// [`DeviceRequest::tables_may_span`].
    pub table_share: f64,
}

impl Default for DeviceTuning {
    fn default() -> Self {
        Self { first_pass: None, table_share: 1.0 }
    }
}

impl DeviceRequest {
    /// The transfer method for probe rows to a hash table that `gpu` reads.
    pub(crate) fn transfer_method(&self, gpu: &Gpu) -> TransferMethod {
        self.transfer.unwrap_or_else(|| gpu.fastest_method())
    }

    /// Waits for the query's turn on the GPU, as [`Gpu::turn`].
    ///
    /// # Errors
    /// As [`Gpu::turn`].
    pub(crate) fn turn(&self) -> Result<Turn<'_>> {
        self.gpu.turn(&self.share)
    }

    /// Why the GPU can no longer be used, if it cannot.
    pub(crate) fn ended_because(&self) -> Option<Error> {
        self.gpu.lost_because().cloned().or_else(|| self.share.check().err())
    }

    /// Reports an error to the observer: as a refusal if it is due to lack of memory or of a device feature, else as a failure. That
    /// the share was taken back is neither: the join counts that once.
    pub(crate) fn report(&self, strategy: Strategy, error: &Error) {
        if matches!(error, Error::TakenBack) {
            return;
        }
        self.gpu.note(error, &self.share);
        let reason = self.observer.reason(error);
        if is_refusal(error) {
            self.observer.refused(strategy, &reason);
        } else {
            self.observer.failed(strategy, &reason);
        }
    }
}

/// Whether an error is due to lack of memory or of a device feature.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::OverBudget { .. }
            | Error::OutOfDeviceMemory { .. }
            | Error::OutOfHostMemory { .. }
            | Error::TooSmall { .. }
            | Error::TooMany { .. }
            | Error::Unsupported { .. }
            | Error::NoPeerAccess { .. }
            | Error::TransferRefused { .. }
    )
}
