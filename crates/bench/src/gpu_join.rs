//! Joins on a GPU as experiments request them, and what the GPU did.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::Result;
use overspill::{DeviceKind, OverspillConfig, OverspillRuntime, PrefixSumProcessor, Strategy};
use overspill_gpu_join::{
    DeviceCount, DeviceObserver, DeviceRequest, DeviceShare, DeviceTuning, Gpu, LinkCompression, LinkCompressor,
    StrategyAdvisor,
};

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
        share: DeviceShare::kept(),
        advisor: Arc::new(One(strategy)),
        tables_may_span: true,
        transfer: None,
        compressor: Arc::new(LinkCompressor::new(LinkCompression::Off)),
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
pub(crate) struct DeviceCounts(Mutex<Counts>);

/// What was counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    build_sides: u64,
    probe_rows: u64,
    returned_rows: u64,
    shared_rows: u64,
    /// Build sides and chunks with keys counted by the CPU.
    pub(crate) cpu_prefix_sums: u64,
    link_bytes: u64,
    /// Bytes of hash tables and partitions in CPU memory.
    pub(crate) spilled_bytes: u64,
    complaints: Vec<String>,
}

impl DeviceObserver for DeviceCounts {
    fn add(&self, what: DeviceCount, number: u64) {
        let mut counts = self.get();
        *match what {
            DeviceCount::Joins(_) => &mut counts.build_sides,
            DeviceCount::ReturnedRows => &mut counts.returned_rows,
            DeviceCount::SharedRows => &mut counts.shared_rows,
            DeviceCount::CpuPrefixSums => &mut counts.cpu_prefix_sums,
            DeviceCount::LinkBytes => &mut counts.link_bytes,
            DeviceCount::SpilledBytes => &mut counts.spilled_bytes,
            _ => return,
        } += number;
    }

    fn probed(&self, _: usize, rows: u64) {
        self.get().probe_rows += rows;
    }

    fn refused(&self, _: Strategy, reason: &str) {
        self.get().complaints.push(format!("refused: {reason}"));
    }

    // The strategy is fixed.
    fn noted(&self, _: Strategy, _: &str) {}

    fn failed(&self, _: Strategy, reason: &str) {
        self.get().complaints.push(format!("failed: {reason}"));
    }
}

impl DeviceCounts {
    pub(crate) fn get(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Bytes that crossed the link, if the GPU joined all of `probe_rows` probe rows except the CPU's share. Otherwise the
    /// reason why it did not.
    pub(crate) fn all_link_bytes(&self, probe_rows: usize) -> std::result::Result<u64, String> {
        if self.build_sides > 0
            && self.returned_rows == 0
            && self.probe_rows > 0
            && self.probe_rows + self.shared_rows == probe_rows as u64
        {
            return Ok(self.link_bytes);
        }
        let returned = || format!("the CPU joined {} of the rows", self.returned_rows);
        Err(self.complaints.first().cloned().unwrap_or_else(returned))
    }

    /// Describes a run that took `seconds` seconds.
    pub(crate) fn describe(&self, seconds: f64) -> String {
        let words = self.complaints.iter().take(3).map(|complaint| format!("; {complaint}")).collect::<String>();
        format!(
            "the GPU joined {} probe rows, the CPU {} of those meant for it and {} as its share; {} crossed the link, \
             {:.1} GB/s of the first run; {} of state lay in CPU memory{words}",
            self.probe_rows,
            self.returned_rows,
            self.shared_rows,
            size(self.link_bytes),
            self.link_bytes as f64 / seconds / 1e9,
            size(self.spilled_bytes),
        )
    }
}
