//! Joins one probe input with the build side, and outputs the build rows afterwards.
//!
//! Both hold all of their state between two calls, so that a stream can be dropped while it waits and another one can
//! continue its work.
//!
//! ```text
//!   build side in memory:  Idle ──▶ Probing ──▶ Idle …                           a part of a probe batch at a time
//!   build side in a file:  Idle ──▶ Filling ──▶ Finishing ──▶ Scanning ──▶ Emitting ──▶ Idle …      a chunk at a time
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::metrics::BaselineMetrics;
use futures::StreamExt;
use overspill_join::hybrid::Step;
use overspill_join::memory::{MAX_COPY_BYTES, UnitMemory, compact};
use overspill_join::spec::Side;
use overspill_join::theta::{Block, BlockBuilder, BlockJoin, MatchedRows, Pushed, rows_by_match};

use super::context::{Build, Finishing, ThetaContext};
use crate::join_execution::input::SharedProbe;
use crate::join_execution::to_datafusion;

/// The time for which a stream may keep its thread before it yields, also to cancellation. Returning a batch does not count
/// as yielding: its consumer may request the next one at once.
const TURN: Duration = Duration::from_millis(10);

/// The state that the streams of a theta join pass to each other.
#[derive(Debug)]
pub(super) struct ThetaProbe;

impl SharedProbe for ThetaProbe {
    type Progress = Progress;
    type Ended = ();
    type Work = BuildRows;
}

/// How far a probe input has been joined.
pub(super) struct Progress {
    memory: Arc<UnitMemory>,
    join: BlockJoin,
    state: State,
    /// Parts of the last probe batch.
    pending: VecDeque<RecordBatch>,
    /// Whether the input has ended.
    ended: bool,
    /// When the stream last yielded.
    turn: Instant,
}

enum State {
    Idle,
    /// Joining probe rows with the blocks of the build side, from block `next` on.
    Probing {
        rows: RecordBatch,
        matched: Arc<MatchedRows>,
        next: usize,
    },
    /// Reading a chunk of the probe side of at most `most` bytes.
    Filling {
        builder: BlockBuilder,
        most: usize,
    },
    Finishing(Finishing),
    /// Joining a chunk of the probe side with the build side, from batch `next` of its file on.
    Scanning {
        block: Arc<Block>,
        file: SendableRecordBatchStream,
        next: usize,
    },
    /// Outputting the rows of a chunk with or without a match, from row `row` on.
    Emitting {
        block: Arc<Block>,
        row: usize,
    },
}

impl Progress {
    pub fn new(context: &ThetaContext, build: &Build, memory: Arc<UnitMemory>) -> Self {
        let side = match build {
            Build::InMemory(_) => Side::Build,
            Build::Spilled(_) => Side::Probe,
        };
        let join = BlockJoin::new(Arc::clone(&context.spec), side);
        Self { memory, join, state: State::Idle, pending: VecDeque::new(), ended: false, turn: Instant::now() }
    }

    /// The next output rows, or `None` when the input has been joined.
    pub async fn next(
        &mut self,
        context: &ThetaContext,
        build: &Build,
        input: &mut SendableRecordBatchStream,
        baseline: &BaselineMetrics,
    ) -> Result<Option<RecordBatch>> {
        loop {
            if self.turn.elapsed() > TURN {
                tokio::task::yield_now().await;
                self.turn = Instant::now();
            }
            let step = {
                let _timer = baseline.elapsed_compute().timer();
                let _phase = context.metrics.join_time.timer();
                self.join.step().map_err(to_datafusion)?
            };
            match step {
                Step::Output(rows) => return Ok(Some(rows)),
                Step::Working => continue,
                Step::Waiting(wait) => {
                    wait.await;
                    continue;
                }
                Step::Finished => {}
            }
            let rows = match build {
                Build::InMemory(blocks) => {
                    if matches!(self.state, State::Idle) && !self.has_pending(context, input, false).await? {
                        return Ok(None);
                    }
                    let _timer = baseline.elapsed_compute().timer();
                    let _phase = context.metrics.join_time.timer();
                    self.probe(context, blocks)?
                }
                Build::Spilled(_) if matches!(self.state, State::Idle) => {
                    if !self.has_pending(context, input, true).await? {
                        return Ok(None);
                    }
                    self.memory.raise_floor(context.floor).map_err(to_datafusion)?;
                    let builder = context.builder(Side::Probe, &self.memory);
                    self.state = State::Filling { builder, most: context.memory.share(context.partitions) };
                    None
                }
                Build::Spilled(build) => match &mut self.state {
                    State::Filling { .. } => {
                        self.fill(context, input).await?;
                        None
                    }
                    State::Finishing(finishing) => {
                        let block = Arc::new(finishing.block().await?);
                        context.metrics.block_passes.add(1);
                        let file = context.store.read(Side::Build, build.file.clone());
                        self.state = State::Scanning { block, file, next: 0 };
                        None
                    }
                    State::Scanning { block, file, next } => {
                        match file.next().await {
                            Some(batch) => {
                                let matched = build.matched(*next);
                                *next += 1;
                                self.join.start(Arc::clone(block), batch?, matched).map_err(to_datafusion)?;
                            }
                            None => self.state = State::Emitting { block: Arc::clone(block), row: 0 },
                        }
                        None
                    }
                    State::Emitting { .. } => self.emit(context)?,
                    State::Idle | State::Probing { .. } => None,
                },
            };
            if rows.is_some() {
                return Ok(rows);
            }
        }
    }

    /// Makes sure that there are rows to join; if not, the input has ended.
    async fn has_pending(
        &mut self,
        context: &ThetaContext,
        input: &mut SendableRecordBatchStream,
        are_kept: bool,
    ) -> Result<bool> {
        while self.pending.is_empty() && !self.ended {
            match input.next().await {
                Some(batch) => {
                    let batch = batch?;
                    context.metrics.input_batches.add(1);
                    context.metrics.input_rows.add(batch.num_rows());
                    self.pending = context.parts(&batch, are_kept).collect();
                }
                None => self.ended = true,
            }
        }
        Ok(!self.pending.is_empty())
    }

    /// Starts to join probe rows with the next block, or finishes them.
    fn probe(&mut self, context: &ThetaContext, blocks: &[Arc<Block>]) -> Result<Option<RecordBatch>> {
        if let State::Idle = self.state
            && let Some(rows) = self.pending.pop_front()
        {
            let marked = if context.spec.join_type.emits_probe_by_match() { rows.num_rows() } else { 0 };
            self.state = State::Probing { rows, matched: Arc::new(MatchedRows::new(marked)), next: 0 };
        }
        let State::Probing { rows, matched, next } = &mut self.state else { return Ok(None) };
        if let Some(block) = blocks.get(*next) {
            *next += 1;
            self.join.start(Arc::clone(block), rows.clone(), Arc::clone(matched)).map_err(to_datafusion)?;
            return Ok(None);
        }
        let output =
            rows_by_match(&context.spec, Side::Probe, rows, matched, 0..rows.num_rows()).map_err(to_datafusion)?;
        self.state = State::Idle;
        Ok(output)
    }

    /// Adds rows to a chunk, and finishes it when it is full.
    async fn fill(&mut self, context: &ThetaContext, input: &mut SendableRecordBatchStream) -> Result<()> {
        let has_more = self.has_pending(context, input, true).await?;
        let State::Filling { builder, most } = &mut self.state else { return Ok(()) };
        let is_full = match self.pending.pop_front() {
            Some(rows) if builder.rows() > 0 && builder.bytes() >= *most => {
                self.pending.push_front(rows);
                true
            }
            Some(rows) => {
                let rows = compact(rows)?;
                if builder.rows() == 0 {
                    builder.push_first(rows);
                    false
                } else {
                    match builder.push(rows) {
                        Pushed::Taken => false,
                        Pushed::Full(rows) | Pushed::Refused(rows, _) => {
                            self.pending.push_front(rows);
                            true
                        }
                    }
                }
            }
            None => !has_more,
        };
        if is_full {
            let State::Filling { builder, .. } = std::mem::replace(&mut self.state, State::Idle) else { return Ok(()) };
            self.state = State::Finishing(context.finishing(builder));
        }
        Ok(())
    }

    fn emit(&mut self, context: &ThetaContext) -> Result<Option<RecordBatch>> {
        let State::Emitting { block, row } = &mut self.state else { return Ok(None) };
        let rows = block.batch().num_rows();
        if *row >= rows || !context.spec.join_type.emits_probe_by_match() {
            self.state = State::Idle;
            return Ok(None);
        }
        let end = block.sizes().end_of_rows(*row, context.spec.batch_size, MAX_COPY_BYTES);
        let output = rows_by_match(&context.spec, Side::Probe, block.batch(), block.matched(), *row..end);
        *row = end;
        output.map_err(to_datafusion)
    }
}

/// Emits the build rows with or without a match after all probe rows have been read.
pub(super) struct BuildRows {
    /// The next block and the row in it, or the next batch of the file.
    block: usize,
    row: usize,
    file: Option<SendableRecordBatchStream>,
}

impl BuildRows {
    pub fn new(context: &ThetaContext, build: &Build) -> Result<Self> {
        let file = match build {
            Build::Spilled(build) => Some(context.store.read(Side::Build, build.file.clone())),
            Build::InMemory(_) => None,
        };
        Ok(Self { block: 0, row: 0, file })
    }

    /// The next rows, or `None` at the end.
    pub async fn next(&mut self, context: &ThetaContext, build: &Build) -> Result<Option<RecordBatch>> {
        loop {
            let output = match (build, &mut self.file) {
                (Build::Spilled(build), Some(file)) => {
                    let Some(batch) = file.next().await else { return Ok(None) };
                    let batch = batch?;
                    let matched = build.matched(self.block);
                    self.block += 1;
                    rows_by_match(&context.spec, Side::Build, &batch, &matched, 0..batch.num_rows())
                }
                (Build::InMemory(blocks), _) => {
                    let Some(block) = blocks.get(self.block) else { return Ok(None) };
                    let rows = block.batch().num_rows();
                    let end = block.sizes().end_of_rows(self.row, context.spec.batch_size, MAX_COPY_BYTES);
                    let range = self.row..end;
                    (self.block, self.row) = if end < rows { (self.block, end) } else { (self.block + 1, 0) };
                    rows_by_match(&context.spec, Side::Build, block.batch(), block.matched(), range)
                }
                (Build::Spilled(_), None) => return Ok(None),
            };
            if let Some(rows) = output.map_err(to_datafusion)? {
                return Ok(Some(rows));
            }
            tokio::task::consume_budget().await;
        }
    }
}
