//! Joins on a GPU as experiments request them, and what the GPU did.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::Result;
use overspill::{DeviceKind, OverspillConfig, OverspillRuntime, PrefixSumProcessor, Strategy};
use overspill_gpu_join::{DeviceCount, DeviceObserver, DeviceRequest, DeviceTuning, Gpu, StrategyAdvisor};

use crate::report::size;

/// Opens the chosen GPU, or returns `None` if the CPU is chosen. Joins use at most `memory_limit` bytes of its memory, 0 for
/// the default.
///
/// # Errors
/// If there is no GPU, or the limit is too small.
pub(crate) fn open(device: DeviceKind, memory_limit: u64) -> Result<Option<Arc<Gpu>>> {
    if device == DeviceKind::Cpu {
        return Ok(None);
    }
    let config = OverspillConfig {
        gpu_memory_limit: usize::try_from(memory_limit).unwrap_or(usize::MAX),
        // Memory that the first run pins stays pinned for the later runs.
        gpu_pinned_memory: usize::MAX,
        ..config(device)
    };
    OverspillRuntime::of_process().gpu(&config).map(Some)
}

/// The settings that select a device.
fn config(device: DeviceKind) -> OverspillConfig {
    OverspillConfig { device: device.into(), ..OverspillConfig::default() }
}

/// The processor that counts keys for `triton` in joins with `threads` threads when SQL runs them.
pub(crate) fn prefix_sum(device: DeviceKind, threads: usize, gpu: &Gpu) -> PrefixSumProcessor {
    OverspillRuntime::of_process().machine().prefix_sum(&config(device), threads, gpu)
}

pub(crate) fn request(
    gpu: &Arc<Gpu>,
    strategy: Strategy,
    prefix_sum: PrefixSumProcessor,
    counts: &Arc<DeviceCounts>,
) -> DeviceRequest {
    DeviceRequest {
        gpu: Arc::clone(gpu),
        advisor: Arc::new(One(strategy)),
        tables_may_span: true,
        transfer: None,
        cached_share: OverspillConfig::default().gpu_cached_share,
        aggregates: None,
        prefix_sum,
        observer: Arc::clone(counts) as _,
        tuning: DeviceTuning::default(),
    }
}

/// An advisor that always chooses one strategy.
#[derive(Debug)]
struct One(Strategy);

impl StrategyAdvisor for One {
    fn strategies(&self, _: u64, _: bool) -> Vec<Strategy> {
        vec![self.0]
    }
}

/// Counters of a GPU's work in a join.
#[derive(Debug, Default)]
pub(crate) struct DeviceCounts {
    build_sides: AtomicU64,
    probe_rows: AtomicU64,
    returned_rows: AtomicU64,
    shared_rows: AtomicU64,
    cpu_prefix_sums: AtomicU64,
    link_bytes: AtomicU64,
    spilled_bytes: AtomicU64,
    complaints: Mutex<Vec<String>>,
}

impl DeviceObserver for DeviceCounts {
    fn add(&self, what: DeviceCount, number: u64) {
        let count = match what {
            DeviceCount::Joins(_) => &self.build_sides,
            DeviceCount::ReturnedRows => &self.returned_rows,
            DeviceCount::SharedRows => &self.shared_rows,
            DeviceCount::CpuPrefixSums => &self.cpu_prefix_sums,
            DeviceCount::LinkBytes => &self.link_bytes,
            DeviceCount::SpilledBytes => &self.spilled_bytes,
            _ => return,
        };
        count.fetch_add(number, Ordering::Relaxed);
    }

    fn probed(&self, _: usize, rows: u64) {
        self.probe_rows.fetch_add(rows, Ordering::Relaxed);
    }

    fn refused(&self, _: Strategy, reason: &str) {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).push(format!("refused: {reason}"));
    }

    // The strategy is fixed.
    fn noted(&self, _: Strategy, _: &str) {}

    fn failed(&self, _: Strategy, reason: &str) {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).push(format!("failed: {reason}"));
    }
}

impl DeviceCounts {
    /// Bytes that crossed the link, if the GPU joined all of `probe_rows` probe rows except the CPU's share. Otherwise the
    /// reason why it did not.
    pub(crate) fn link_bytes(&self, probe_rows: usize) -> std::result::Result<u64, String> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        if count(&self.build_sides) > 0
            && count(&self.returned_rows) == 0
            && count(&self.probe_rows) > 0
            && count(&self.probe_rows) + count(&self.shared_rows) == probe_rows as u64
        {
            return Ok(count(&self.link_bytes));
        }
        let complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        let returned = || format!("the CPU joined {} of the rows", count(&self.returned_rows));
        Err(complaints.first().cloned().unwrap_or_else(returned))
    }

    /// Build sides and chunks with keys counted by the CPU.
    pub(crate) fn cpu_prefix_sums(&self) -> u64 {
        self.cpu_prefix_sums.load(Ordering::Relaxed)
    }

    /// Bytes of hash tables and partitions in CPU memory.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.spilled_bytes.load(Ordering::Relaxed)
    }

    /// Describes a run that took `seconds` seconds.
    pub(crate) fn describe(&self, seconds: f64) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (probed, link) = (count(&self.probe_rows), count(&self.link_bytes));
        let complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        let words = complaints.iter().take(3).map(|complaint| format!("; {complaint}")).collect::<String>();
        format!(
            "the GPU joined {probed} probe rows, the CPU {} of those meant for it and {} as its share; {} crossed the link, \
             {:.1} GB/s of the first run; {} of state lay in CPU memory{words}",
            count(&self.returned_rows),
            count(&self.shared_rows),
            size(link),
            link as f64 / seconds / 1e9,
            size(count(&self.spilled_bytes)),
        )
    }
}
