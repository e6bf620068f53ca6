//! A task whose rows leave as blocks.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use ballista_core::JobId;
use ballista_core::serde::protobuf::ShuffleWritePartition;
use ballista_core::utils::collect_plan_metrics;
use ballista_executor::execution_engine::QueryStageExecutor;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, Time};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use overspill_codec::BlockWriter;
use tokio::task::JoinSet;

use super::blocks::{Blocks, write_file};
use super::partitioner::{Partitioner, size_here};
use crate::declared::declared;

/// Where the rows of a task go.
#[derive(Debug, Clone)]
pub struct Output {
    /// The query.
    pub job: JobId,
    /// The number of the stage.
    pub stage: usize,
    /// The number of the task in its stage, which names its file.
    pub task: usize,
    /// The directory of the executor.
    pub directory: PathBuf,
    /// Rows with equal keys go to the same task of the next stage.
    pub keys: Vec<Arc<dyn PhysicalExpr>>,
    /// The number of partitions.
    pub partitions: usize,
    /// Bytes that each input collects before it compresses them.
    pub share: usize,
}

/// A task that runs a plan, and writes its rows as blocks for the tasks of the next stage.
#[derive(Debug)]
pub struct BlockStage {
    plan: Arc<dyn ExecutionPlan>,
    output: Output,
    metrics: ExecutionPlanMetricsSet,
}

impl BlockStage {
    /// A task that writes the rows of `plan`.
    pub fn new(plan: Arc<dyn ExecutionPlan>, output: Output) -> Self {
        Self { plan, output, metrics: ExecutionPlanMetricsSet::new() }
    }

    fn input(&self, number: usize, context: &Arc<TaskContext>) -> Input {
        let Output { keys, partitions, share, .. } = self.output.clone();
        let consumer = MemoryConsumer::new(format!("BlockStage[{number}]")).with_can_spill(true);
        Input {
            plan: Arc::clone(&self.plan),
            number,
            rows: Partitioner::new(keys, partitions),
            blocks: Blocks::new(partitions),
            writer: BlockWriter::default(),
            written: vec![Written::default(); partitions],
            share,
            memory: consumer.register(context.memory_pool()),
            metrics: InputMetrics::new(&self.metrics, number),
        }
    }
}

impl Display for BlockStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Output { job, stage, task, .. } = &self.output;
        write!(f, "task {task} of stage {stage} of job {job}, which writes blocks")
    }
}

#[async_trait]
impl QueryStageExecutor for BlockStage {
    async fn execute_query_stage(&self, _: usize, context: Arc<TaskContext>) -> Result<Vec<ShuffleWritePartition>> {
        let Output { job, stage, task, directory, partitions, .. } = &self.output;
        let mut running = JoinSet::new();
        for number in 0..self.plan.output_partitioning().partition_count() {
            running.spawn(self.input(number, &context).run(Arc::clone(&context)));
        }
        let mut inputs = Vec::new();
        while let Some(ended) = running.join_next().await {
            inputs.push(ended.map_err(|panic| exec_datafusion_err!("a task has panicked: {panic}"))??);
        }
        let timer = MetricBuilder::new(&self.metrics).subset_time("write_time", 0);
        let written = MetricBuilder::new(&self.metrics).counter("block_bytes", 0);
        let directory = directory.join(job.as_str()).join(stage.to_string()).join(task.to_string());
        let (partitions, task) = (*partitions, *task as u64);
        let writing = tokio::task::spawn_blocking(move || {
            let _timer = timer.timer();
            std::fs::create_dir_all(&directory)?;
            let blocks: Vec<&Blocks> = inputs.iter().map(|input: &Input| &input.blocks).collect();
            let length =
                write_file(&blocks, partitions, &directory.join("data.arrow"), &directory.join("data.arrow.index"))?;
            written.add(length as usize);
            let sent = (0..partitions).map(|partition| {
                let all = inputs.iter().fold(Written::default(), |all, input| all.and(input.written[partition]));
                ShuffleWritePartition {
                    partition_id: partition as u64,
                    num_batches: all.batches,
                    num_rows: all.rows,
                    num_bytes: all.bytes,
                    file_id: Some(task),
                    is_sort_shuffle: true,
                }
            });
            Ok::<_, DataFusionError>(sent.filter(|sent| sent.num_rows > 0).collect())
        });
        writing.await.map_err(|panic| exec_datafusion_err!("a task has panicked: {panic}"))?
    }

    fn collect_plan_metrics(&self) -> Vec<MetricsSet> {
        std::iter::once(self.metrics.clone_inner()).chain(collect_plan_metrics(self.plan.as_ref())).collect()
    }
}

/// What an input has sent to a partition. The scheduler plans by bytes before compression.
#[derive(Debug, Clone, Copy, Default)]
struct Written {
    batches: u64,
    rows: u64,
    bytes: u64,
}

impl Written {
    fn and(self, other: Self) -> Self {
        Self { batches: self.batches + other.batches, rows: self.rows + other.rows, bytes: self.bytes + other.bytes }
    }
}

struct InputMetrics {
    partition_time: Time,
    compress_time: Time,
    rows: Count,
    output_rows: Count,
    spills: Count,
    spilled_bytes: Count,
}

impl InputMetrics {
    fn new(metrics: &ExecutionPlanMetricsSet, number: usize) -> Self {
        let new = || MetricBuilder::new(metrics);
        Self {
            partition_time: new().subset_time("partition_time", number),
            compress_time: new().subset_time("compress_time", number),
            rows: new().counter("input_rows", number),
            output_rows: new().output_rows(number),
            spills: new().spill_count(number),
            spilled_bytes: new().spilled_bytes(number),
        }
    }
}

/// One partition of the plan.
struct Input {
    plan: Arc<dyn ExecutionPlan>,
    number: usize,
    rows: Partitioner,
    blocks: Blocks,
    writer: BlockWriter,
    written: Vec<Written>,
    share: usize,
    memory: MemoryReservation,
    metrics: InputMetrics,
}

impl Input {
    /// Runs the plan, and keeps its rows as blocks.
    async fn run(mut self, context: Arc<TaskContext>) -> Result<Self> {
        let mut batches = self.plan.execute(self.number, Arc::clone(&context))?;
        while let Some(batch) = batches.next().await.transpose()? {
            self.take(batch, &context)?;
        }
        self.compress(&context)?;
        Ok(self)
    }

    fn take(&mut self, batch: RecordBatch, context: &TaskContext) -> Result<()> {
        self.metrics.rows.add(batch.num_rows());
        // Readers go by the plan's types.
        let batch = declared(&self.plan.schema(), batch)?;
        let added = size_here(&batch);
        if added > self.share {
            // Offsets of 32 bits reach its rows, but maybe not those of others too.
            self.compress(context)?;
        }
        let timer = self.metrics.partition_time.timer();
        self.rows.push(batch)?;
        drop(timer);
        // Of rows that the pool has no room for there is one batch at most.
        let has_room = self.memory.try_grow(added).is_ok();
        if !has_room || self.rows.bytes() >= self.share { self.compress(context) } else { Ok(()) }
    }

    /// Turns the rows that wait into blocks, and moves these to disk if memory has no room for them.
    fn compress(&mut self, context: &TaskContext) -> Result<()> {
        let Self { rows, blocks, writer, written, metrics, .. } = self;
        let timer = metrics.compress_time.timer();
        rows.flush(|partition, rows| {
            let block = writer.write(rows).map_err(|error| {
                exec_datafusion_err!(
                    "Rows cannot be compressed for other tasks: {error}. SET overspill.shuffle_compression = off"
                )
            })?;
            blocks.push(partition, block);
            metrics.output_rows.add(rows.num_rows());
            let bytes = rows.get_array_memory_size() as u64;
            written[partition] = written[partition].and(Written { batches: 1, rows: rows.num_rows() as u64, bytes });
            Ok(())
        })?;
        drop(timer);
        let is_large = self.blocks.resident_bytes() > self.share;
        if is_large || self.memory.try_resize(self.blocks.resident_bytes()).is_err() {
            let bytes = self.blocks.spill(&context.runtime_env().disk_manager)?;
            self.metrics.spills.add(1);
            self.metrics.spilled_bytes.add(bytes);
            self.memory.free();
        }
        Ok(())
    }
}
