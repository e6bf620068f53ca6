//! What EXPLAIN ANALYZE shows.

use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricCategory, SpillMetrics, Time,
};

/// The metrics of an input stream.
#[derive(Debug, Clone)]
pub(super) struct InputMetrics {
    /// The time that it computes.
    pub time: Time,
    /// Rows and states that it left to the output streams.
    pub partitioned: Count,
    /// Rows that it did not group.
    pub ungrouped: Count,
    /// Rows of few groups that it added in words of 64 bits.
    pub narrow: Count,
}

/// The metrics of one execution.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    set: ExecutionPlanMetricsSet,
    pub spill: SpillMetrics,
}

impl Metrics {
    pub fn new(set: &ExecutionPlanMetricsSet) -> Self {
        Self { set: set.clone(), spill: SpillMetrics::new(set, 0) }
    }

    pub fn of_input(&self, partition: usize) -> InputMetrics {
        let rows = |name: &'static str| {
            MetricBuilder::new(&self.set).with_category(MetricCategory::Rows).counter(name, partition)
        };
        InputMetrics {
            time: MetricBuilder::new(&self.set).subset_time("input_time", partition),
            partitioned: rows("partitioned_rows"),
            ungrouped: rows("ungrouped_rows"),
            narrow: rows("narrow_rows"),
        }
    }

    pub fn of_output(&self, partition: usize) -> BaselineMetrics {
        BaselineMetrics::new(&self.set, partition)
    }
}
