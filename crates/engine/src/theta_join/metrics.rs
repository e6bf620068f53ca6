//! What EXPLAIN ANALYZE shows of a theta join.

use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, Time};

use crate::join_execution::disk::DiskMetrics;

/// The metrics of one execution of a join, shared by its streams.
#[derive(Debug, Clone)]
pub(super) struct ThetaMetrics {
    pub build_input_rows: Count,
    pub build_input_batches: Count,
    pub input_rows: Count,
    pub input_batches: Count,
    /// The most bytes held at any time, in all streams together.
    pub peak_mem_used: Gauge,
    /// Build sides that were entirely in memory.
    pub in_memory_joins: Count,
    /// Build sides that were moved to a file.
    pub spilled_joins: Count,
    /// The number of times that a build side in a file was read for joining: once for each chunk of the probe side.
    pub block_passes: Count,
    /// Time to read and sort the build side, without waiting for input.
    pub build_time: Time,
    /// Time to compare rows and return the result, without waiting for input.
    pub join_time: Time,
    pub disk: DiskMetrics,
}

impl ThetaMetrics {
    pub fn new(metrics: &ExecutionPlanMetricsSet) -> Self {
        let counter = |name: &'static str| MetricBuilder::new(metrics).global_counter(name);
        Self {
            build_input_rows: counter("build_input_rows"),
            build_input_batches: counter("build_input_batches"),
            input_rows: counter("input_rows"),
            input_batches: counter("input_batches"),
            peak_mem_used: MetricBuilder::new(metrics).global_gauge("peak_mem_used"),
            in_memory_joins: counter("in_memory_joins"),
            spilled_joins: counter("spilled_joins"),
            block_passes: counter("block_passes"),
            build_time: MetricBuilder::new(metrics).subset_time("build_time", 0),
            join_time: MetricBuilder::new(metrics).subset_time("join_time", 0),
            disk: DiskMetrics::new(metrics),
        }
    }
}
