//! The metrics of the joins of an executed plan.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::displayable;

/// DataFusion's nodes for joins that have key columns.
const FOREIGN_EQUI_JOINS: [&str; 3] = ["HashJoinExec", "SortMergeJoinExec", "SymmetricHashJoinExec"];

/// DataFusion's nodes for joins that have none.
const FOREIGN_THETA_JOINS: [&str; 3] = ["NestedLoopJoinExec", "CrossJoinExec", "PiecewiseMergeJoinExec"];

/// The joins of a plan and what their metrics add up to.
#[derive(Clone, Debug, Default)]
pub struct PlanReport {
    /// Build sides that became probe sides.
    pub side_swaps: usize,
    /// Nodes that are Overspill's.
    pub hybrid_joins: usize,
    /// Nodes that are DataFusion's equi-joins, rendered.
    pub foreign_joins: Vec<String>,
    pub theta: ThetaReport,
    pub spill_count: usize,
    pub spilled_bytes: usize,
    pub spilled_rows: usize,
    pub recursion_depth: usize,
    pub chunk_passes: usize,
    pub device: DeviceReport,
    pub selection: SelectionReport,
    /// Nodes that drop rows by the keys of joins, and the rows that each dropped.
    pub dropped_rows: Vec<usize>,
    /// The documented floors of the joins, in bytes.
    pub floors: Vec<usize>,
}

/// The joins without an equality, and what their metrics add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThetaReport {
    /// Nodes that are Overspill's.
    pub joins: usize,
    /// Nodes that are DataFusion's, rendered.
    pub foreign_joins: Vec<String>,
    pub spilled_joins: usize,
    pub block_passes: usize,
    pub spilled_bytes: usize,
}

impl ThetaReport {
    fn add(&mut self, node: &Arc<dyn ExecutionPlan>) {
        self.joins += 1;
        self.spilled_joins += total(node, "spilled_joins");
        self.block_passes += total(node, "block_passes");
        self.spilled_bytes += total(node, "spilled_bytes");
    }
}

/// What a GPU did of the joins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceReport {
    pub no_partition_joins: usize,
    pub triton_joins: usize,
    pub cpu_partitioned_joins: usize,
    pub het_joins: usize,
    pub gpu_het_joins: usize,
    /// Joins that left the GPU because their query's share was taken back.
    pub moves: usize,
    pub build_rows: usize,
    pub probe_rows: usize,
    /// How many GPUs looked probe rows up.
    pub gpus: usize,
    pub returned_rows: usize,
    pub aggregated_rows: usize,
    pub shared_rows: usize,
    pub cpu_prefix_sums: usize,
    pub link_bytes: usize,
    /// Bytes that compression kept from crossing the link.
    pub saved_link_bytes: usize,
    pub state_bytes: usize,
    pub spilled_bytes: usize,
    /// Names of strategies with the reasons why they were not possible.
    pub refusals: Vec<String>,
    /// The same of what was not possible of those that were taken.
    pub notes: Vec<String>,
    /// The same for which the device failed.
    pub failures: Vec<String>,
}

impl DeviceReport {
    fn add(&mut self, node: &Arc<dyn ExecutionPlan>) {
        self.no_partition_joins += total(node, "gpu_no_partition_joins");
        self.triton_joins += total(node, "triton_joins");
        self.cpu_partitioned_joins += total(node, "cpu_partitioned_joins");
        self.het_joins += total(node, "het_joins");
        self.gpu_het_joins += total(node, "gpu_het_joins");
        self.moves += total(node, "gpu_moves");
        self.build_rows += total(node, "gpu_build_rows");
        self.probe_rows += total(node, "gpu_probe_rows");
        self.gpus = self.gpus.max(total(node, "gpus"));
        self.returned_rows += total(node, "gpu_returned_rows");
        self.aggregated_rows += total(node, "gpu_aggregated_rows");
        self.shared_rows += total(node, "gpu_shared_rows");
        self.cpu_prefix_sums += total(node, "cpu_prefix_sums");
        self.link_bytes += total(node, "gpu_link_bytes");
        self.saved_link_bytes += total(node, "gpu_link_bytes_saved");
        self.state_bytes += total(node, "gpu_state_bytes");
        self.spilled_bytes += total(node, "gpu_spilled_bytes");
        self.refusals.extend(labels(node, "gpu_refusals"));
        self.notes.extend(labels(node, "gpu_notes"));
        self.failures.extend(labels(node, "gpu_failures"));
    }

    pub fn joins(&self) -> usize {
        self.no_partition_joins + self.triton_joins + self.cpu_partitioned_joins + self.het_joins + self.gpu_het_joins
    }
}

/// The filters that are fused with their aggregates, and what their metrics add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectionReport {
    pub nodes: usize,
    pub input_rows: usize,
    pub selected_rows: usize,
    pub unfused_rows: usize,
    pub branching_batches: usize,
    pub predicated_batches: usize,
    pub gpu_rows: usize,
    /// Streams that left the GPU because the query's share was taken back.
    pub moves: usize,
    pub returned_rows: usize,
    pub link_bytes: usize,
    /// The most that a stream held for the device.
    pub peak_bytes: usize,
    pub refusals: Vec<String>,
    pub failures: Vec<String>,
}

impl SelectionReport {
    fn of(node: &Arc<dyn ExecutionPlan>) -> Self {
        Self {
            nodes: 1,
            input_rows: total(node, "input_rows"),
            selected_rows: total(node, "selected_rows"),
            unfused_rows: total(node, "unfused_rows"),
            branching_batches: total(node, "branching_batches"),
            predicated_batches: total(node, "predicated_batches"),
            gpu_rows: total(node, "gpu_rows"),
            moves: total(node, "gpu_moves"),
            returned_rows: total(node, "gpu_returned_rows"),
            link_bytes: total(node, "gpu_link_bytes"),
            peak_bytes: highest(node, "peak_mem_used"),
            refusals: labels(node, "gpu_refusals"),
            failures: labels(node, "gpu_failures"),
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.nodes += other.nodes;
        self.input_rows += other.input_rows;
        self.selected_rows += other.selected_rows;
        self.unfused_rows += other.unfused_rows;
        self.branching_batches += other.branching_batches;
        self.predicated_batches += other.predicated_batches;
        self.gpu_rows += other.gpu_rows;
        self.moves += other.moves;
        self.returned_rows += other.returned_rows;
        self.link_bytes += other.link_bytes;
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
        self.refusals.extend_from_slice(&other.refusals);
        self.failures.extend_from_slice(&other.failures);
    }
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
            self.side_swaps += total(node, "side_swaps");
            self.device.add(node);
            self.chunk_passes = self.chunk_passes.max(highest(node, "chunk_passes"));
        } else if node.name() == "ThetaJoinExec" {
            self.theta.add(node);
            // Its streams share what they build.
            self.floors.push(floor(node) + stream_floor(node));
        } else if FOREIGN_THETA_JOINS.contains(&node.name()) {
            self.theta.foreign_joins.push(displayable(node.as_ref()).one_line().to_string().trim().to_owned());
        } else if node.name() == "FilterAggregateExec" {
            self.selection.merge(&SelectionReport::of(node));
        } else if node.name() == "MembershipExec" {
            self.dropped_rows.push(total(node, "dropped_rows"));
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
    let streams = node.properties().output_partitioning().partition_count();
    let collected = displayable(node.as_ref()).one_line().to_string().contains("CollectLeft");
    (streams + usize::from(collected)) * stream_floor(node)
}

/// The same of one stream.
fn stream_floor(node: &Arc<dyn ExecutionPlan>) -> usize {
    let columns = node.children().iter().map(|child| child.schema().fields().len()).max().unwrap_or(0);
    (256 << 10).max((8 << 10) * columns)
}

fn values(node: &Arc<dyn ExecutionPlan>, name: &str) -> Vec<usize> {
    let Some(metrics) = node.metrics() else { return vec![] };
    metrics.iter().filter(|metric| metric.value().name() == name).map(|metric| metric.value().as_usize()).collect()
}

fn labels(node: &Arc<dyn ExecutionPlan>, name: &str) -> Vec<String> {
    let Some(metrics) = node.metrics() else { return vec![] };
    let found = metrics.iter().filter(|metric| metric.value().name() == name);
    found.map(|metric| metric.labels().iter().map(|label| label.value()).collect::<Vec<_>>().join(": ")).collect()
}

/// The sum of a metric of a node over its partitions.
pub fn total(node: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    values(node, name).into_iter().sum()
}

/// Gauges are kept per partition; the plan's value is the highest of them.
fn highest(node: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    values(node, name).into_iter().max().unwrap_or(0)
}
