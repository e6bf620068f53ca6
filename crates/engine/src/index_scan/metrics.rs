//! What EXPLAIN ANALYZE shows of indexes.

use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder};
use overspill_gpu_join::DeviceProblem;

use crate::device::problem_metric;
use crate::indexes::files::SelectedRows;

/// What EXPLAIN ANALYZE shows of lookups.
#[derive(Debug, Clone)]
pub(crate) struct IndexMetrics {
    /// Keys or ranges looked up.
    pub lookups: Count,
    /// Rows found and fetched.
    pub rows: Count,
    /// Blocks of an index file that were read, and pages of data with rows that were found.
    pub blocks: Count,
    pub pages: Count,
    /// Keys that a GPU looked up.
    pub gpu_lookups: Count,
    metrics: ExecutionPlanMetricsSet,
}

impl IndexMetrics {
    pub fn new(metrics: &ExecutionPlanMetricsSet) -> Self {
        let counter = |name: &'static str| MetricBuilder::new(metrics).global_counter(name);
        Self {
            lookups: counter("index_lookups"),
            rows: counter("index_rows"),
            blocks: counter("index_blocks"),
            pages: counter("index_pages"),
            gpu_lookups: counter("gpu_lookups"),
            metrics: metrics.clone(),
        }
    }

    /// Counts rows of files.
    pub fn selected(&self, selected: &SelectedRows) {
        self.rows.add(selected.rows);
        self.blocks.add(selected.blocks);
        self.pages.add(selected.pages);
    }

    /// Counts a problem of a GPU, whose work the CPU does.
    pub fn count_problem(&self, problem: &DeviceProblem) {
        let (name, reason) = problem_metric(problem);
        MetricBuilder::new(&self.metrics).with_new_label("reason", reason).global_counter(name).add(1);
    }

    /// Counts a scan that looks nothing up.
    pub fn refuse(&self, reason: impl Into<String>) {
        MetricBuilder::new(&self.metrics)
            .with_new_label("reason", reason.into())
            .global_counter("index_refusals")
            .add(1);
    }
}
