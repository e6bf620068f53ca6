//! What EXPLAIN ANALYZE shows of a join.

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, MetricCategory, SpillMetrics, Time,
};

/// The metrics of one execution of a join, shared by its streams.
#[derive(Debug, Clone)]
pub(super) struct JoinMetrics {
    /// Rows read from the build side.
    pub build_input_rows: Count,
    /// Batches read from the build side.
    pub build_input_batches: Count,
    /// Rows read from the probe side.
    pub input_rows: Count,
    /// Batches read from the probe side.
    pub input_batches: Count,
    /// The most bytes held at any time, in all streams together.
    pub peak_mem_used: Gauge,
    /// Hash tables over a build side that was wholly in memory.
    pub in_memory_joins: Count,
    /// Streams that partitioned their probe rows by the region of the hash table that they look into.
    pub radix_streams: Count,
    /// Streams whose last lookups went through a Bloom filter.
    pub filtered_streams: Count,
    /// Build sides that were partly moved to files.
    pub hybrid_joins: Count,
    /// Partitions of the build side that were moved to files.
    pub spilled_partitions: Count,
    /// How often rows have been partitioned, at most: 0 if all was in memory, 2 if a partition was partitioned again.
    pub recursion_depth: Gauge,
    /// Into how many chunks a partition that hashing cannot split was divided, at most.
    pub chunk_passes: Gauge,
    /// Rows read back from files; those that are joined in passes, once a pass.
    pub spill_read_rows: Count,
    /// Bytes of the files that were read back.
    pub spill_read_bytes: Count,
    /// Taking the build side in, from its first row to the finished hash table, without waiting for input.
    pub build_time: Time,
    /// Looking up probe rows and putting out the result, without waiting for input.
    pub join_time: Time,
    /// Joining what was spilled.
    pub deferred_time: Time,
    /// Files and their bytes and rows.
    pub spill: SpillMetrics,
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
            radix_streams: counter("radix_streams"),
            filtered_streams: counter("filtered_streams"),
            hybrid_joins: counter("hybrid_joins"),
            spilled_partitions: counter("spilled_partitions"),
            recursion_depth: gauge("recursion_depth"),
            chunk_passes: gauge("chunk_passes"),
            spill_read_rows: counter("spill_read_rows"),
            spill_read_bytes: MetricBuilder::new(metrics)
                .with_category(MetricCategory::Bytes)
                .global_counter("spill_read_bytes"),
            build_time: MetricBuilder::new(metrics).subset_time("build_time", 0),
            join_time: MetricBuilder::new(metrics).subset_time("join_time", 0),
            deferred_time: MetricBuilder::new(metrics).subset_time("deferred_time", 0),
            spill: SpillMetrics::new(metrics, 0),
        }
    }

    /// The metrics of one output stream.
    pub fn stream(metrics: &ExecutionPlanMetricsSet, partition: usize) -> BaselineMetrics {
        BaselineMetrics::new(metrics, partition)
    }
}
