//! What a statement has done so far, from the metrics of its plan.

use std::sync::Arc;

use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use overspill::{RunningPlan, SharedSubplanExec};

/// Watches a statement, from any thread, also after its rows have been read.
#[derive(Debug, Clone)]
pub struct Monitor {
    watched: Watched,
    pool: Arc<dyn MemoryPool>,
}

#[derive(Debug, Clone)]
enum Watched {
    Plan(Arc<dyn ExecutionPlan>),
    /// Whatever runs before the session's statement returns.
    Running(Arc<RunningPlan>),
}

/// The work of a statement so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows read from tables and files.
    pub rows_read: usize,
    /// Bytes that the session's queries and tables hold.
    pub held_bytes: usize,
    /// Bytes written to the temporary directory.
    pub spilled_bytes: usize,
    /// The joins of the plan, from its top.
    pub joins: Vec<JoinProgress>,
}

/// The work of a join so far, in rows and bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JoinProgress {
    /// Rows of the build side that were read.
    pub build_rows: usize,
    /// Rows of the probe side that were read.
    pub probe_rows: usize,
    /// Rows that the join returned.
    pub output_rows: usize,
    /// Bytes written to the temporary directory.
    pub spilled_bytes: usize,
}

impl Monitor {
    pub(crate) fn new(plan: &Arc<dyn ExecutionPlan>, pool: &Arc<dyn MemoryPool>) -> Self {
        Self { watched: Watched::Plan(Arc::clone(plan)), pool: Arc::clone(pool) }
    }

    pub(crate) fn of_running(running: &Arc<RunningPlan>, pool: &Arc<dyn MemoryPool>) -> Self {
        Self { watched: Watched::Running(Arc::clone(running)), pool: Arc::clone(pool) }
    }

    /// The work so far.
    pub fn progress(&self) -> Progress {
        let mut progress = Progress { held_bytes: self.pool.reserved(), ..Progress::default() };
        if let Some(plan) = self.plan() {
            visit(&plan, &mut progress);
        }
        progress
    }

    /// The plan, whose operators have metrics: those that `EXPLAIN ANALYZE VERBOSE` shows. `None` before there is one.
    pub fn plan(&self) -> Option<Arc<dyn ExecutionPlan>> {
        match &self.watched {
            Watched::Plan(plan) => Some(Arc::clone(plan)),
            Watched::Running(running) => running.plan(),
        }
    }
}

fn visit(plan: &Arc<dyn ExecutionPlan>, progress: &mut Progress) {
    if let Some(metrics) = plan.metrics() {
        let spilled_bytes = metrics.spilled_bytes().unwrap_or(0);
        progress.spilled_bytes += spilled_bytes;
        // Readers of a shared subplan read no table.
        if plan.children().is_empty() && !plan.is::<SharedSubplanExec>() {
            progress.rows_read += metrics.output_rows().unwrap_or(0);
        }
        if plan.name().ends_with("JoinExec") {
            progress.joins.push(JoinProgress {
                build_rows: count(&metrics, "build_input_rows"),
                probe_rows: count(&metrics, "input_rows") + count(&metrics, "probe_input_rows"),
                output_rows: metrics.output_rows().unwrap_or(0),
                spilled_bytes,
            });
        }
    }
    for child in plan.children() {
        visit(child, progress);
    }
}

fn count(metrics: &MetricsSet, name: &str) -> usize {
    metrics.sum_by_name(name).map_or(0, |value| value.as_usize())
}
