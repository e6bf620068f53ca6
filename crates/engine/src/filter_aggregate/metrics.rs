//! What EXPLAIN ANALYZE shows of a filter with its aggregate.

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, MetricCategory,
};
use overspill_gpu_join::DeviceProblem;

use crate::device::problem_metric;

/// The metrics of one output stream.
#[derive(Debug)]
pub(super) struct FilterAggregateMetrics {
    pub baseline: BaselineMetrics,
    /// Rows read from the input.
    pub input_rows: Count,
    /// Rows that passed the filter.
    pub selected_rows: Count,
    pub branching_batches: Count,
    pub predicated_batches: Count,
    /// Rows that DataFusion's filter and aggregates processed, because products of their decimals may not fit 128 bits.
    pub unfused_rows: Count,
}

/// The metrics of a stream that uses a GPU.
#[derive(Debug, Clone)]
pub(super) struct DeviceMetrics {
    metrics: ExecutionPlanMetricsSet,
    partition: usize,
    /// Rows that kernels processed.
    pub rows: Count,
    /// Rows that were meant for a GPU but selected by the CPU.
    pub returned_rows: Count,
    pub link_bytes: Count,
    /// The most bytes held at any time: batches, and their columns in the form that kernels read.
    pub peak_mem_used: Gauge,
}

impl FilterAggregateMetrics {
    pub fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        let counter = |name: &'static str| MetricBuilder::new(metrics).counter(name, partition);
        Self {
            baseline: BaselineMetrics::new(metrics, partition),
            input_rows: counter("input_rows"),
            selected_rows: counter("selected_rows"),
            branching_batches: counter("branching_batches"),
            predicated_batches: counter("predicated_batches"),
            unfused_rows: counter("unfused_rows"),
        }
    }
}

impl DeviceMetrics {
    pub fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        let counter = |name: &'static str| MetricBuilder::new(metrics).counter(name, partition);
        let link_bytes =
            MetricBuilder::new(metrics).with_category(MetricCategory::Bytes).counter("gpu_link_bytes", partition);
        Self {
            rows: counter("gpu_rows"),
            returned_rows: counter("gpu_returned_rows"),
            link_bytes,
            peak_mem_used: MetricBuilder::new(metrics).gauge("peak_mem_used", partition),
            metrics: metrics.clone(),
            partition,
        }
    }

    /// Counts a failure or refusal of the GPU, with the reason as a label.
    pub fn count_problem(&self, problem: &DeviceProblem) {
        let (name, reason) = problem_metric(problem);
        MetricBuilder::new(&self.metrics).with_new_label("reason", reason).counter(name, self.partition).add(1);
    }
}
