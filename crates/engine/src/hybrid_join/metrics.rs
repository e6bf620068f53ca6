//! What EXPLAIN ANALYZE shows of a join.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, MetricCategory, MetricValue, Time,
};
use overspill_advisor::Strategy;
use overspill_gpu_join::{DeviceCount, DeviceObserver};
use parking_lot::Mutex;

use crate::device::with_advice;
use crate::join_execution::disk::DiskMetrics;

/// The maximum number of different reasons; any further ones are counted without their reason.
const MOST_REASONS: usize = 8;

/// The metrics of joins that a GPU takes part in.
#[derive(Debug)]
pub(super) struct DeviceMetrics {
    metrics: ExecutionPlanMetricsSet,
    counts: Vec<(DeviceCount, Count)>,
    probe_rows: Count,
    mapping_time: Time,
    gpus: Count,
    /// The GPUs that have looked up probe rows.
    probing: Mutex<HashSet<usize>>,
    /// Counters by metric name, strategy and reason.
    reasons: Mutex<HashMap<(&'static str, Strategy, String), Count>>,
}

impl DeviceMetrics {
    pub fn new(metrics: &ExecutionPlanMetricsSet) -> Self {
        let counter = |name: Cow<'static, str>| MetricBuilder::new(metrics).global_counter(name);
        let bytes =
            |name: &'static str| MetricBuilder::new(metrics).with_category(MetricCategory::Bytes).global_counter(name);
        let mut counts = vec![
            (DeviceCount::BuildRows, counter("gpu_build_rows".into())),
            (DeviceCount::Moves, counter("gpu_moves".into())),
            (DeviceCount::ReturnedRows, counter("gpu_returned_rows".into())),
            (DeviceCount::AggregatedRows, counter("gpu_aggregated_rows".into())),
            (DeviceCount::SharedRows, counter("gpu_shared_rows".into())),
            (DeviceCount::CpuPrefixSums, counter("cpu_prefix_sums".into())),
            (DeviceCount::LinkBytes, bytes("gpu_link_bytes")),
            (DeviceCount::SavedLinkBytes, bytes("gpu_link_bytes_saved")),
            (DeviceCount::StateBytes, bytes("gpu_state_bytes")),
            (DeviceCount::SpilledBytes, bytes("gpu_spilled_bytes")),
        ];
        for strategy in Strategy::ALL.into_iter().filter(|strategy| strategy.uses_gpu()) {
            counts.push((DeviceCount::Joins(strategy), counter(format!("{}_joins", strategy.name()).into())));
        }
        Self {
            counts,
            probe_rows: counter("gpu_probe_rows".into()),
            mapping_time: {
                let time = Time::new();
                let name = "gpu_mapping_time".into();
                MetricBuilder::new(metrics).build(MetricValue::Time { name, time: time.clone() });
                time
            },
            gpus: counter("gpus".into()),
            probing: Mutex::default(),
            reasons: Mutex::default(),
            metrics: metrics.clone(),
        }
    }

    fn count(&self, name: &'static str, strategy: Strategy, reason: &str) {
        let mut reasons = self.reasons.lock();
        let is_known = reasons.contains_key(&(name, strategy, reason.to_owned()));
        let reason = if is_known || reasons.len() < MOST_REASONS { reason } else { "others" };
        let count = reasons.entry((name, strategy, reason.to_owned())).or_insert_with(|| {
            MetricBuilder::new(&self.metrics)
                .with_new_label("strategy", strategy.name().to_owned())
                .with_new_label("reason", reason.to_owned())
                .global_counter(name)
        });
        count.add(1);
    }
}

impl DeviceObserver for DeviceMetrics {
    fn add(&self, what: DeviceCount, number: u64) {
        if what == DeviceCount::MappingTime {
            self.mapping_time.add_duration(Duration::from_nanos(number));
        } else if let Some((_, count)) = self.counts.iter().find(|(of, _)| *of == what) {
            count.add(number as usize);
        }
    }

    fn probed(&self, gpu: usize, rows: u64) {
        self.probe_rows.add(rows as usize);
        if self.probing.lock().insert(gpu) {
            self.gpus.add(1);
        }
    }

    fn refused(&self, strategy: Strategy, reason: &str) {
        self.count("gpu_refusals", strategy, reason);
    }

    fn noted(&self, strategy: Strategy, reason: &str) {
        self.count("gpu_notes", strategy, reason);
    }

    fn failed(&self, strategy: Strategy, reason: &str) {
        self.count("gpu_failures", strategy, reason);
    }

    fn reason(&self, error: &overspill_machine::Error) -> String {
        with_advice(error)
    }
}

/// The metrics of one execution of a join, shared by its streams.
#[derive(Debug, Clone)]
pub(super) struct JoinMetrics {
    pub build_input_rows: Count,
    pub build_input_batches: Count,
    pub input_rows: Count,
    pub input_batches: Count,
    /// The most bytes held at any time, in all streams together.
    pub peak_mem_used: Gauge,
    /// Hash tables over a build side that was entirely in memory.
    pub in_memory_joins: Count,
    /// Build sides that became probe sides, as the other side was smaller than expected beside them.
    pub side_swaps: Count,
    /// Streams that partitioned their probe rows by region of the hash table.
    pub radix_streams: Count,
    /// Streams that used a Bloom filter for their last lookups.
    pub filtered_streams: Count,
    /// Build sides that were partly moved to files.
    pub hybrid_joins: Count,
    /// Partitions of the build side that were moved to files.
    pub spilled_partitions: Count,
    /// The maximum number of times that rows have been partitioned: 0 if everything was in memory, 2 if a partition was
    /// partitioned again.
    pub recursion_depth: Gauge,
    /// The maximum number of chunks of a partition that hashing cannot split.
    pub chunk_passes: Gauge,
    /// Time to read the build side, from its first row to the finished hash table, without waiting for input.
    pub build_time: Time,
    /// Time to look up probe rows and return the result, without waiting for input.
    pub join_time: Time,
    /// Streams that joined spilled rows.
    pub deferred_streams: Count,
    /// Time to join spilled rows.
    pub deferred_time: Time,
    pub disk: DiskMetrics,
}

impl JoinMetrics {
    pub fn new(metrics: &ExecutionPlanMetricsSet) -> Self {
        let counter = |name: &'static str| MetricBuilder::new(metrics).global_counter(name);
        let gauge = |name: &'static str| MetricBuilder::new(metrics).global_gauge(name);
        Self {
            build_input_rows: counter("build_input_rows"),
            build_input_batches: counter("build_input_batches"),
            input_rows: counter("input_rows"),
            input_batches: counter("input_batches"),
            peak_mem_used: gauge("peak_mem_used"),
            in_memory_joins: counter("in_memory_joins"),
            side_swaps: counter("side_swaps"),
            radix_streams: counter("radix_streams"),
            filtered_streams: counter("filtered_streams"),
            hybrid_joins: counter("hybrid_joins"),
            spilled_partitions: counter("spilled_partitions"),
            recursion_depth: gauge("recursion_depth"),
            chunk_passes: gauge("chunk_passes"),
            build_time: MetricBuilder::new(metrics).subset_time("build_time", 0),
            join_time: MetricBuilder::new(metrics).subset_time("join_time", 0),
            deferred_streams: counter("deferred_streams"),
            deferred_time: MetricBuilder::new(metrics).subset_time("deferred_time", 0),
            disk: DiskMetrics::new(metrics),
        }
    }
}
