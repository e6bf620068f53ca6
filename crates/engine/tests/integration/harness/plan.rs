//! What an executed plan tells about its joins.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::displayable;

/// DataFusion's nodes for joins that have key columns.
const FOREIGN_EQUI_JOINS: [&str; 3] = ["HashJoinExec", "SortMergeJoinExec", "SymmetricHashJoinExec"];

/// The joins of a plan and what their metrics add up to.
#[derive(Clone, Debug, Default)]
pub struct PlanReport {
    /// Nodes that are Overspill's.
    pub hybrid_joins: usize,
    /// Nodes that are DataFusion's equi-joins, rendered.
    pub foreign_joins: Vec<String>,
    pub spill_count: usize,
    pub spilled_bytes: usize,
    pub spilled_rows: usize,
    pub recursion_depth: usize,
    pub chunk_passes: usize,
    /// The documented floors of the joins, in bytes.
    pub floors: Vec<usize>,
}

impl PlanReport {
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let mut report = Self::default();
        report.visit(plan);
        report
    }

    pub fn equi_joins(&self) -> usize {
        self.hybrid_joins + self.foreign_joins.len()
    }

    pub fn spilled(&self) -> bool {
        self.spill_count > 0
    }

    fn visit(&mut self, node: &Arc<dyn ExecutionPlan>) {
        if node.name() == "HybridJoinExec" {
            self.hybrid_joins += 1;
            self.floors.push(floor(node));
            self.spill_count += total(node, "spill_count");
            self.spilled_bytes += total(node, "spilled_bytes");
            self.spilled_rows += total(node, "spilled_rows");
            self.recursion_depth = self.recursion_depth.max(highest(node, "recursion_depth"));
            self.chunk_passes = self.chunk_passes.max(highest(node, "chunk_passes"));
        } else if FOREIGN_EQUI_JOINS.contains(&node.name()) {
            self.foreign_joins.push(displayable(node.as_ref()).one_line().to_string().trim().to_owned());
        }
        for child in node.children() {
            self.visit(child);
        }
    }
}

/// The memory below which a join need not run, as the documentation states it: 256 KiB, or 8 KiB a column where that is
/// more, for each stream, and once more for a build side that the streams share.
fn floor(node: &Arc<dyn ExecutionPlan>) -> usize {
    let columns = node.children().iter().map(|child| child.schema().fields().len()).max().unwrap_or(0);
    let streams = node.properties().output_partitioning().partition_count();
    let collected = displayable(node.as_ref()).one_line().to_string().contains("CollectLeft");
    (streams + usize::from(collected)) * (256 << 10).max((8 << 10) * columns)
}

fn values(node: &Arc<dyn ExecutionPlan>, name: &str) -> Vec<usize> {
    let Some(metrics) = node.metrics() else { return vec![] };
    metrics.iter().filter(|metric| metric.value().name() == name).map(|metric| metric.value().as_usize()).collect()
}

fn total(node: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    values(node, name).into_iter().sum()
}

/// Gauges are kept per partition; the plan's value is the highest of them.
fn highest(node: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    values(node, name).into_iter().max().unwrap_or(0)
}
