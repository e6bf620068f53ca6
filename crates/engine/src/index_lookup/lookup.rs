//! What is looked up.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder};
use overspill_join::memory::Grant;

use crate::indexes::{IndexedRows, TableIndex};

/// What is looked up, and where.
#[derive(Debug)]
pub(super) struct Lookup {
    pub index: Arc<TableIndex>,
    pub rows: Arc<IndexedRows>,
    /// The columns that the scan returns.
    pub columns: Vec<usize>,
    /// Their schema.
    pub schema: SchemaRef,
    /// The key of the other side.
    pub key: PhysicalExprRef,
}

/// Distinct keys in ascending order, which streams take and look up.
#[derive(Debug)]
pub(super) struct LookupKeys {
    pub words: Vec<u64>,
    /// The first key that no stream has taken.
    pub next: AtomicUsize,
    _memory: Grant,
}

impl LookupKeys {
    /// Keys for which `memory` pays.
    pub fn new(words: Vec<u64>, memory: Grant) -> Self {
        Self { words, next: AtomicUsize::new(0), _memory: memory }
    }
}

/// What EXPLAIN ANALYZE shows of lookups.
#[derive(Debug, Clone)]
pub(super) struct LookupMetrics {
    /// Executions that looked rows up.
    pub joins: Count,
    /// Keys looked up.
    pub lookups: Count,
    /// Rows found and fetched.
    pub rows: Count,
    metrics: ExecutionPlanMetricsSet,
}

impl LookupMetrics {
    pub fn new(metrics: &ExecutionPlanMetricsSet) -> Self {
        let counter = |name: &'static str| MetricBuilder::new(metrics).global_counter(name);
        Self {
            joins: counter("index_joins"),
            lookups: counter("index_lookups"),
            rows: counter("index_rows"),
            metrics: metrics.clone(),
        }
    }

    pub fn refuse(&self, reason: &'static str) {
        MetricBuilder::new(&self.metrics)
            .with_new_label("reason", reason.to_owned())
            .global_counter("index_refusals")
            .add(1);
    }
}
