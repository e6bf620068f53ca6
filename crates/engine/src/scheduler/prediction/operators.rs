//! The time of operators, each a coefficient times rows (paper 5, section 4.2).

use std::fmt::{self, Write};
use std::hash::Hasher;

use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use overspill_machine::DeviceKind;
use overspill_schedule::Class;
use twox_hash::XxHash64;

use super::Prediction;
use crate::config::OverspillConfig;
use crate::hybrid_join::HybridJoinExec;
use crate::runtime::OverspillRuntime;

/// Nanoseconds of a thread for each row that a kind of operator reads, or that a scan returns for each of its columns. They are
/// estimates and not measured. `overspill bench load` tells how far they are off.
const SCAN_MEMORY: f64 = 0.5;
const SCAN_FILE: f64 = 6.0;
const FILTER: f64 = 4.0;
const BUILD: f64 = 40.0;
const PROBE: f64 = 20.0;
const THETA: f64 = 200.0;
const AGGREGATE: f64 = 20.0;
const SORT: f64 = 80.0;
const WINDOW: f64 = 100.0;
const EXCHANGE: f64 = 5.0;
const WRITE: f64 = 100.0;
const OTHER: f64 = 1.0;

/// Nanoseconds for an operator of a plan to start.
const START: f64 = 20_000.0;

/// Where estimates are unknown: bytes of a row in a file, rows of another source, and the share of its input's rows that an operator returns.
const ROW_BYTES: f64 = 40.0;
const ROWS: f64 = 1000.0;
const PASSES: f64 = 0.2;
const GROUPS: f64 = 0.1;

/// Bytes of stack that a node of a deep plan needs, and those that are added where there are fewer.
const RED_ZONE: usize = 128 << 10;
const STACK: usize = 2 << 20;

/// Bytes of a row of a hash table on the GPU.
const TABLE_BYTES: u64 = 32;

/// Bytes of GPU memory for a build side.
pub(in super::super) fn table_bytes(rows: u64) -> u64 {
    rows.saturating_mul(TABLE_BYTES)
}

/// What is known of a part of a plan.
#[derive(Debug, Default)]
struct Sum {
    /// Nanoseconds on the CPU, and those of it that a GPU saves.
    cpu: f64,
    saved: f64,
    /// Bytes of GPU memory.
    gpu_memory: u64,
    joins: bool,
    aggregates: bool,
}

/// A plan that is predicted.
struct Walk<'a> {
    config: &'a OverspillConfig,
    runtime: &'a OverspillRuntime,
    threads: usize,
    statistics: StatisticsContext,
    sum: Sum,
    shape: Shape,
}

/// What a plan on `threads` threads takes.
pub(super) fn predicted(
    plan: &dyn ExecutionPlan,
    config: &OverspillConfig,
    runtime: &OverspillRuntime,
    threads: usize,
) -> Prediction {
    let statistics = StatisticsContext::new();
    let mut walk = Walk { config, runtime, threads, statistics, sum: Sum::default(), shape: Shape::new() };
    walk.rows(plan);
    let Walk { sum, shape, .. } = walk;
    Prediction {
        cpu: sum.cpu / 1e9,
        gpu: (sum.joins || sum.aggregates).then_some((sum.cpu - sum.saved) / 1e9),
        gpu_memory: sum.gpu_memory,
        class: match (sum.joins, sum.aggregates) {
            (true, true) => Class::Both,
            (false, true) => Class::Aggregate,
            (_, false) => Class::Join,
        },
        shape: shape.hash.finish(),
    }
}

impl Walk<'_> {
    /// The rows that a node returns. Adds its time, and that of its inputs.
    fn rows(&mut self, node: &dyn ExecutionPlan) -> f64 {
        // Its text has no inputs.
        write!(self.shape, "{}", DisplayableExecutionPlan::new(node).one_line()).ok();
        self.shape.open();
        let children = node.children().into_iter();
        let inputs: Vec<f64> =
            children.map(|input| stacker::maybe_grow(RED_ZONE, STACK, || self.rows(input.as_ref()))).collect();
        self.shape.close();
        let read: f64 = inputs.iter().sum();
        let estimate = self.statistics.compute(node, &StatisticsArgs::new()).ok();
        let estimate = estimate.and_then(|statistics| statistics.num_rows.get_value().map(|rows| *rows as f64));
        let columns = node.schema().fields().len().max(1) as f64;
        let (work, unknown) = match node.name() {
            "DataSourceExec" => {
                let rows = estimate.unwrap_or_else(|| rows_of_files(node).unwrap_or(ROWS));
                let scan = if rows_of_files(node).is_some() { SCAN_FILE } else { SCAN_MEMORY };
                (rows * columns * scan, rows)
            }
            "FilterExec" => (read * FILTER, read * PASSES),
            "FilterAggregateExec" => {
                let work = read * FILTER * 2.0;
                if self.config.device.0.is_some_and(|device| device != DeviceKind::Cpu) {
                    self.sum.aggregates = true;
                    self.sum.saved += work / 2.0 / self.threads_of(node);
                }
                (work, 1.0)
            }
            "HybridJoinExec" | "HashJoinExec" | "SortMergeJoinExec" => self.join(node, &inputs),
            "ThetaJoinExec" | "NestedLoopJoinExec" | "CrossJoinExec" => (read * THETA, inputs.iter().product()),
            "JoinAggregateExec" => {
                self.sum.aggregates |= self.sum.joins;
                (read * AGGREGATE, 1.0)
            }
            "AggregateExec" => (read * AGGREGATE, (read * GROUPS).max(1.0)),
            "SpillingSortExec" | "SortExec" | "PartialSortExec" => (read * SORT, read),
            "SortPreservingMergeExec" => (read * SORT / 2.0, read),
            "WindowAggExec" | "BoundedWindowAggExec" | "CountedWindowExec" => (read * WINDOW, read),
            "RepartitionExec" => (read * EXCHANGE, read),
            "DataSinkExec" | "WriteAsideExec" => (read * WRITE, 1.0),
            _ => (read * OTHER, if inputs.is_empty() { ROWS } else { read }),
        };
        self.sum.cpu += START + work / self.threads_of(node);
        estimate.unwrap_or(unknown)
    }

    /// The time of a join with these inputs, and its rows if they are unknown.
    fn join(&mut self, node: &dyn ExecutionPlan, inputs: &[f64]) -> (f64, f64) {
        let (build, probe) = (inputs.first().copied().unwrap_or(0.0), inputs.get(1).copied().unwrap_or(0.0));
        let work = build * BUILD + probe * PROBE;
        let join = node.downcast_ref::<HybridJoinExec>();
        if let Some(advisor) = join.and_then(|join| join.gpu_advisor(self.config, self.runtime, true)) {
            self.sum.joins = true;
            let speedup = advisor.speedup(build as u64, probe as u64);
            self.sum.saved += work / self.threads_of(node) * (1.0 - 1.0 / speedup);
            self.sum.gpu_memory = self.sum.gpu_memory.max(table_bytes(build as u64));
        }
        (work, build.max(probe))
    }

    /// How many threads a node keeps busy.
    fn threads_of(&self, node: &dyn ExecutionPlan) -> f64 {
        node.output_partitioning().partition_count().clamp(1, self.threads) as f64
    }
}

/// The rows of files, by their sizes; `None` if it scans no files.
fn rows_of_files(node: &dyn ExecutionPlan) -> Option<f64> {
    let scan = node.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FileScanConfig>()?;
    let files = scan.file_groups.iter().flat_map(|group| group.iter());
    let bytes: u64 = files
        .map(|file| file.range.as_ref().map_or(file.object_meta.size, |range| (range.end - range.start).max(0) as u64))
        .sum();
    Some(bytes as f64 / ROW_BYTES)
}

/// Hashes the text of plans without their numbers.
struct Shape {
    hash: XxHash64,
    /// Whether the last character belongs to a name, whose digits count, or to a number.
    last: Last,
}

#[derive(Clone, Copy, PartialEq)]
enum Last {
    Name,
    Number,
    Other,
}

impl Shape {
    fn new() -> Self {
        Self { hash: XxHash64::with_seed(0), last: Last::Other }
    }

    fn open(&mut self) {
        self.hash.write_u8(b'(');
        self.last = Last::Other;
    }

    fn close(&mut self) {
        self.hash.write_u8(b')');
        self.last = Last::Other;
    }
}

impl fmt::Write for Shape {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let is_name = byte.is_ascii_alphabetic() || byte == b'_';
            match (byte, self.last) {
                (b'0'..=b'9', Last::Other) => self.last = Last::Number,
                (b'0'..=b'9' | b'.' | b'-' | b':', Last::Number) => {}
                _ => {
                    self.last = match (is_name || byte.is_ascii_digit(), self.last) {
                        (true, _) => Last::Name,
                        (false, _) => Last::Other,
                    };
                    self.hash.write_u8(byte);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(text: &str) -> u64 {
        let mut shape = Shape::new();
        write!(shape, "{text}").unwrap();
        shape.hash.finish()
    }

    #[test]
    fn numbers_do_not_make_another_shape_and_names_do() {
        assert_eq!(hash("FilterExec: a@0 > 17 AND b@1 < 2.5"), hash("FilterExec: a@0 > 4 AND b@1 < 1800.25"));
        assert_ne!(hash("FilterExec: a@0 > 17"), hash("FilterExec: b@0 > 17"));
        assert_ne!(hash("scan t1"), hash("scan t2"));
        assert_eq!(hash("t.parquet:0..512"), hash("t.parquet:512..1024"));
    }
}
