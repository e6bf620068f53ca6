//! The work of operators (paper 5, section 4.2).

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
use super::coefficients::{ByKind, Kind};
use crate::config::OverspillConfig;
use crate::hybrid_join::HybridJoinExec;
use crate::runtime::OverspillRuntime;

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
pub(crate) struct Work {
    /// Rows that each of its threads processes on the CPU.
    pub rows: ByKind,
    /// Those of them that a GPU takes, and how many take the CPU as long.
    taken: ByKind,
    equal: ByKind,
    /// The number of operators.
    operators: usize,
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
    sum: Work,
    shape: Shape,
}

/// The work of a plan on `threads` threads, and its shape: that of plans that differ in constants alone is the same.
pub(crate) fn work(
    plan: &dyn ExecutionPlan,
    config: &OverspillConfig,
    runtime: &OverspillRuntime,
    threads: usize,
) -> (Work, u64) {
    let statistics = StatisticsContext::new();
    let mut walk = Walk { config, runtime, threads, statistics, sum: Work::default(), shape: Shape::new() };
    walk.rows(plan);
    (walk.sum, walk.shape.hash.finish())
}

impl Work {
    /// Nanoseconds in which its operators start.
    pub fn start(&self) -> f64 {
        START * self.operators as f64
    }

    /// Nanoseconds on the CPU, if a row costs as much.
    fn on_cpu(&self, cost: &ByKind) -> f64 {
        self.start() + cost.dot(&self.rows)
    }

    /// How many times as long as predicted the GPU took for its part, if the whole plan took `took` nanoseconds and `cost` is what a row
    /// costs the CPU.
    pub fn gpu_cost(&self, cost: &ByKind, took: f64) -> f64 {
        const BOUNDS: (f64, f64) = (0.02, 50.0);
        let others = self.on_cpu(cost) - cost.dot(&self.taken);
        let measured = (took - others) / cost.dot(&self.equal);
        if measured.is_nan() { 1.0 } else { measured.clamp(BOUNDS.0, BOUNDS.1) }
    }

    /// What it takes. `cost` is what a row costs the CPU, in nanoseconds, and `gpu_cost` how many times as long as predicted the GPU takes,
    /// both by the kind of operator.
    pub fn predicted(&self, cost: &ByKind, gpu_cost: &ByKind, shape: u64) -> Prediction {
        let cpu = self.on_cpu(cost);
        let gpu = || cpu - cost.dot(&self.taken) + cost.times(gpu_cost).dot(&self.equal);
        Prediction {
            cpu: cpu / 1e9,
            gpu: (self.joins || self.aggregates).then(|| gpu() / 1e9),
            gpu_memory: self.gpu_memory,
            class: match (self.joins, self.aggregates) {
                (true, true) => Class::Both,
                (false, true) => Class::Aggregate,
                (_, false) => Class::Join,
            },
            shape,
        }
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
        let threads = self.threads_of(node);
        let mut spend = |kind, rows: f64| self.sum.rows[kind] += rows / threads;
        let unknown = match node.name() {
            "DataSourceExec" => {
                let of_files = rows_of_files(node);
                let rows = estimate.or(of_files).unwrap_or(ROWS);
                spend(if of_files.is_some() { Kind::ScanFile } else { Kind::ScanMemory }, rows * columns);
                rows
            }
            "FilterExec" | "AdaptiveFilterExec" => {
                spend(Kind::Filter, read);
                read * PASSES
            }
            "FilterAggregateExec" => {
                spend(Kind::Filter, 2.0 * read);
                if self.config.device.0.is_some_and(|device| device != DeviceKind::Cpu) {
                    self.sum.aggregates = true;
                    self.sum.taken[Kind::Filter] += 2.0 * read / threads;
                    self.sum.equal[Kind::Filter] += read / threads;
                }
                1.0
            }
            "HybridJoinExec" | "HashJoinExec" | "SortMergeJoinExec" => self.join(node, &inputs),
            "ThetaJoinExec" | "NestedLoopJoinExec" | "CrossJoinExec" => {
                spend(Kind::Theta, read);
                inputs.iter().product()
            }
            // Its output is one partition, but each partition of the join aggregates its pairs.
            "JoinAggregateExec" => {
                let threads = node.children().first().map_or(1.0, |join| self.threads_of(join.as_ref()));
                self.sum.rows[Kind::Aggregate] += read / threads;
                self.sum.aggregates |= self.sum.joins;
                1.0
            }
            "AggregateExec" | "HybridAggregateExec" => {
                spend(Kind::Aggregate, read);
                (read * GROUPS).max(1.0)
            }
            "SpillingSortExec" | "SortExec" | "PartialSortExec" => {
                spend(Kind::Sort, read);
                read
            }
            "SortPreservingMergeExec" => {
                spend(Kind::Sort, read / 2.0);
                read
            }
            "WindowAggExec" | "BoundedWindowAggExec" | "CountedWindowExec" => {
                spend(Kind::Window, read);
                read
            }
            "RepartitionExec" => {
                spend(Kind::Exchange, read);
                read
            }
            "DataSinkExec" | "WriteAsideExec" => {
                spend(Kind::Write, read);
                1.0
            }
            _ => {
                spend(Kind::Other, read);
                if inputs.is_empty() { ROWS } else { read }
            }
        };
        self.sum.operators += 1;
        estimate.unwrap_or(unknown)
    }

    /// Adds the work of a join with these inputs. Returns its rows, if they are unknown.
    fn join(&mut self, node: &dyn ExecutionPlan, inputs: &[f64]) -> f64 {
        let (build, probe) = (inputs.first().copied().unwrap_or(0.0), inputs.get(1).copied().unwrap_or(0.0));
        let threads = self.threads_of(node);
        let work = [(Kind::Build, build), (Kind::Probe, probe)];
        work.into_iter().for_each(|(kind, rows)| self.sum.rows[kind] += rows / threads);
        let join = node.downcast_ref::<HybridJoinExec>();
        if let Some(advisor) = join.and_then(|join| join.gpu_advisor(self.config, self.runtime, true)) {
            self.sum.joins = true;
            let speedup = advisor.speedup(build as u64, probe as u64);
            for (kind, rows) in work {
                self.sum.taken[kind] += rows / threads;
                self.sum.equal[kind] += rows / threads / speedup;
            }
            self.sum.gpu_memory = self.sum.gpu_memory.max(table_bytes(build as u64));
        }
        build.max(probe)
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
