//! A join and the means to run it: reads the build side, and builds blocks.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use overspill_join::memory::{Grant, RowSizes, UnitMemory, compact, row_bytes};
use overspill_join::spec::Side;
use overspill_join::spill::SpillStore;
use overspill_join::theta::{Block, BlockBuilder, MatchedRows, Pushed, ThetaSpec};

use super::metrics::ThetaMetrics;
use crate::join_execution::disk::{DiskFile, DiskStore, DiskWriter};
use crate::join_execution::memory::JoinMemory;
use crate::join_execution::timeline::{JoinTimeline, LaneName};
use crate::join_execution::to_datafusion;

/// Blocks of fewer rows are sorted on the current thread; sorting more would block a runtime thread for too long.
const SORTED_AT_ONCE: usize = 1 << 15;

/// When memory is refused, the collected rows are first built into a block if there are at least this many: a finished block
/// takes less memory than an unsorted one.
const WORTH_FINISHING: usize = 1 << 15;

/// The floor divided by this number is the memory of rows that are written or read together.
const FILE_BATCH_SHARE: usize = 4;

/// A join and the means to run it, shared by all its streams.
#[derive(Debug)]
pub(super) struct ThetaContext {
    pub spec: Arc<ThetaSpec>,
    pub store: DiskStore,
    pub memory: Arc<JoinMemory>,
    pub metrics: ThetaMetrics,
    pub timeline: Arc<JoinTimeline>,
    /// Whether the build side may be moved to a file.
    pub spills: bool,
    /// The memory that a stream needs to go on, in bytes.
    pub floor: usize,
    /// Output streams.
    pub partitions: usize,
}

/// A build side that has been read.
pub(super) enum Build {
    InMemory(Vec<Arc<Block>>),
    Spilled(SpilledBuild),
}

/// A build side in a file.
pub(super) struct SpilledBuild {
    pub file: DiskFile,
    /// For each batch of the file, the rows that have found a match, if the output depends on them.
    matched: Vec<Arc<MatchedRows>>,
    /// The memory of `matched`.
    _grant: Grant,
}

impl Build {
    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::InMemory(blocks) if blocks.is_empty())
    }
}

impl SpilledBuild {
    /// The rows of the batch with this number that have found a match.
    pub fn matched(&self, batch: usize) -> Arc<MatchedRows> {
        self.matched.get(batch).cloned().unwrap_or_default()
    }
}

impl ThetaContext {
    /// Reads the build side into memory, or into a file once memory is exhausted.
    pub async fn read_build(&self, mut input: SendableRecordBatchStream) -> Result<Build> {
        let phase = self.timeline.lane(LaneName::BuildSide).phase("build");
        let memory = self.memory.unit();
        let mut blocks = Vec::new();
        let mut builder = self.builder(Side::Build, &memory);
        let mut rows = 0;
        while let Some(batch) = input.next().await {
            let batch = batch?;
            self.metrics.build_input_batches.add(1);
            self.metrics.build_input_rows.add(batch.num_rows());
            rows += batch.num_rows();
            let mut pending = (batch.num_rows() > 0).then_some(batch);
            while let Some(batch) = pending.take() {
                let pushed = {
                    let _timer = self.metrics.build_time.timer();
                    builder.push(batch)
                };
                match pushed {
                    Pushed::Taken => {}
                    Pushed::Refused(batch, error) if builder.rows() < WORTH_FINISHING => {
                        if !self.spills {
                            return Err(to_datafusion(error));
                        }
                        self.metrics.spilled_joins.add(1);
                        return self.spill(memory, blocks, builder, batch, input).await.map(Build::Spilled);
                    }
                    Pushed::Full(batch) | Pushed::Refused(batch, _) => {
                        let full = std::mem::replace(&mut builder, self.builder(Side::Build, &memory));
                        blocks.push(Arc::new(self.finish(full).await?));
                        pending = Some(batch);
                    }
                }
            }
        }
        // The probe side may need the memory and the files that were used to produce the build side.
        drop(input);
        if builder.rows() > 0 {
            blocks.push(Arc::new(self.finish(builder).await?));
        }
        phase.record("rows", rows);
        self.metrics.in_memory_joins.add(1);
        Ok(Build::InMemory(blocks))
    }

    /// Moves a build side to a file: the collected rows, a batch, and the rest of the input.
    async fn spill(
        &self,
        memory: Arc<UnitMemory>,
        blocks: Vec<Arc<Block>>,
        builder: BlockBuilder,
        batch: RecordBatch,
        mut input: SendableRecordBatchStream,
    ) -> Result<SpilledBuild> {
        memory.raise_floor(self.floor).map_err(to_datafusion)?;
        let mut file = BuildFile::new(self)?;
        for block in blocks {
            file.write(block.batch()).await?;
        }
        let (batches, grant) = builder.into_batches();
        for batch in batches {
            file.write(&batch).await?;
        }
        drop(grant);
        file.write(&batch).await?;
        while let Some(batch) = input.next().await {
            let batch = batch?;
            self.metrics.build_input_batches.add(1);
            self.metrics.build_input_rows.add(batch.num_rows());
            file.write(&batch).await?;
        }
        drop(input);
        file.finish()
    }

    /// An empty block.
    pub fn builder(&self, side: Side, memory: &Arc<UnitMemory>) -> BlockBuilder {
        BlockBuilder::new(Arc::clone(&self.spec), side, memory)
    }

    /// A task that builds a block. If the block is small its result is available at once.
    pub fn finishing(&self, builder: BlockBuilder) -> Finishing {
        let time = self.metrics.build_time.clone();
        let is_small = builder.rows() <= SORTED_AT_ONCE;
        let finish = move || {
            let _timer = time.timer();
            builder.finish().map_err(to_datafusion)
        };
        if is_small {
            Finishing::Done(Box::new(Some(finish())))
        } else {
            Finishing::Running(SpawnedTask::spawn_blocking(finish))
        }
    }

    async fn finish(&self, builder: BlockBuilder) -> Result<Block> {
        self.finishing(builder).block().await
    }

    /// Splits a batch into parts of at most an output batch's rows. Parts that are kept in memory or in a file beside other
    /// rows are also limited to a part of the floor.
    pub fn parts(&self, batch: &RecordBatch, are_kept: bool) -> impl Iterator<Item = RecordBatch> + use<> {
        let (most_bytes, most_rows) = match are_kept {
            true => {
                let bytes = self.floor / FILE_BATCH_SHARE;
                (bytes, (bytes / row_bytes(batch)).clamp(1, self.spec.batch_size))
            }
            false => (usize::MAX, self.spec.batch_size),
        };
        let sizes = RowSizes::new(batch, 0..batch.num_columns());
        let batch = batch.clone();
        let mut start = 0;
        std::iter::from_fn(move || {
            let end = sizes.end_of_rows(start, most_rows, most_bytes);
            let part = (end > start).then(|| batch.slice(start, end - start));
            start = end;
            part
        })
    }
}

/// A block under construction.
pub(super) enum Finishing {
    Done(Box<Option<Result<Block>>>),
    Running(SpawnedTask<Result<Block>>),
}

impl Finishing {
    /// Returns the block. The future may be dropped and called again, but not after it has returned the block.
    pub async fn block(&mut self) -> Result<Block> {
        match self {
            Self::Done(block) => {
                block.take().unwrap_or_else(|| Err(internal_datafusion_err!("a block of a join was asked for twice")))
            }
            Self::Running(task) => {
                task.join_unwind_mut().await.map_err(|error| DataFusionError::ExecutionJoin(Box::new(error)))?
            }
        }
    }
}

/// The file of a build side under construction.
struct BuildFile<'a> {
    context: &'a ThetaContext,
    writer: DiskWriter,
    matched: Vec<Arc<MatchedRows>>,
    grant: Grant,
}

impl<'a> BuildFile<'a> {
    fn new(context: &'a ThetaContext) -> Result<Self> {
        let writer = context.store.create(Side::Build).map_err(to_datafusion)?;
        Ok(Self { context, writer, matched: Vec::new(), grant: context.memory.unit().grant() })
    }

    async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        for part in self.context.parts(batch, true) {
            let part = compact(part)?;
            if self.context.spec.join_type.emits_build_at_end() {
                self.grant.grow(MatchedRows::bytes(part.num_rows()) + size_of::<MatchedRows>());
                self.matched.push(Arc::new(MatchedRows::new(part.num_rows())));
            }
            self.context.store.append(&mut self.writer, &part).map_err(to_datafusion)?;
            tokio::task::consume_budget().await;
        }
        Ok(())
    }

    fn finish(self) -> Result<SpilledBuild> {
        let file = self.context.store.finish(self.writer).map_err(to_datafusion)?;
        Ok(SpilledBuild { file, matched: self.matched, _grant: self.grant })
    }
}
