//! Joins spilled rows, one pair of partitions at a time.
//!
//! ```text
//!                    .----- pairs of its own, one level deeper -----.
//!                    v                                              |
//!   PairQueue --> begin --- hashing splits the build rows ---> Hybrid --> Emitting --> next pair
//!                    |
//!                    '----- one hash, or skew -----> Passes --------------------------> next pair
//!
//!   Passes:  Filling --> Scanning --> Emitting --> Filling ...   a pass for each chunk of build rows that fits in memory;
//!                                         '------> Done          the last one also returns the unmatched probe rows
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::{RecordBatchReceiverStreamBuilder, RecordBatchStreamAdapter};
use futures::StreamExt;
use futures::stream::{select_all, try_unfold};
use overspill_join::hybrid::{
    AggregatingStream, BuildEmitter, BuildSide, ChunkBuild, MatchedRows, ProbeSpill, Prober, Step, pair_finder,
};
use overspill_join::memory::{Grant, UnitMemory};
use overspill_join::spec::Side;
use overspill_join::spill::Radix;
use tracing::Span;

use super::context::{FilePartition, JoinContext, ReadBuild};
use super::pairs::{Pair, PairQueue, spilled_pairs};
use crate::join_execution::disk::DiskStore;
use crate::join_execution::input::SharedProbe;
use crate::join_execution::timeline::Lane;
use crate::join_execution::to_datafusion;

/// The state that the streams of a hybrid join pass to each other.
#[derive(Debug)]
pub(super) struct HybridProbe;

impl SharedProbe for HybridProbe {
    type Progress = Prober<DiskStore>;
    type Ended = ProbedInput;
    type Work = Work;
}

/// What an input that has been probed leaves behind.
pub(super) struct ProbedInput {
    /// The probe partitions in files.
    pub spilled: Vec<Option<FilePartition>>,
    /// The means of the stream that has probed it; `None` if another stream may need its memory.
    pub joiner: Option<Joiner>,
}

/// What a stream has to join pairs of partitions with.
#[derive(Clone)]
pub(super) struct Joiner {
    pub memory: Arc<UnitMemory>,
    pub lane: Lane,
}

/// The work of a stream after the probe side has been read.
pub(super) enum Work {
    /// Returns build rows; then the joiners join these pairs of partitions.
    Emitting(BuildEmitter, Vec<Joiner>, Vec<Pair>),
    Deferred(SendableRecordBatchStream),
}

/// Joins pairs of partitions.
///
/// Several joiners work at the same time, each in a task of its own and with the memory of a stream that has ended. A stream
/// whose input ends before those of others cannot wait for pairs, as the others may never be polled again. So it leaves its
/// memory to the stream that ends the last input, and that one starts the tasks. Dropping the output stops them.
pub(super) fn join_pairs(
    context: &Arc<JoinContext>,
    mut joiners: Vec<Joiner>,
    pairs: Vec<Pair>,
) -> SendableRecordBatchStream {
    // A stream that has probed several inputs is one joiner.
    joiners.sort_by_key(|joiner| Arc::as_ptr(&joiner.memory));
    joiners.dedup_by(|one, other| Arc::ptr_eq(&one.memory, &other.memory));
    // Partitions that do not fit beside each other would be partitioned again, which costs more than threads gain.
    let largest = pairs.iter().map(|pair| pair.build.bytes).max();
    let together = |joiners: &usize| largest.is_some_and(|bytes| bytes <= context.memory.share(*joiners));
    let most = (1..=joiners.len()).rev().find(together);
    joiners.truncate(most.unwrap_or(usize::from(largest.is_some())));
    let queue = Arc::new(PairQueue::new(pairs));
    let start = |joiner| {
        let (context, queue) = (Arc::clone(context), Arc::clone(&queue));
        let deferred = Deferred { context, joiner, queue, current: None, phase: None, span: Span::none() };
        try_unfold(deferred, |mut deferred| async move { Ok(deferred.next().await?.map(|batch| (batch, deferred))) })
            .boxed()
    };
    let joined: Vec<_> = joiners.into_iter().map(start).collect();
    let schema = Arc::clone(&context.plan.spec.output_schema);
    if joined.len() <= 1 {
        return Box::pin(RecordBatchStreamAdapter::new(schema, select_all(joined)));
    }
    // One batch waits besides that of each joiner, as no budget counts them.
    let mut output = RecordBatchReceiverStreamBuilder::new(schema, 1);
    for mut batches in joined {
        let sender = output.tx();
        output.spawn(async move {
            while let Some(batch) = batches.next().await
                && sender.send(batch).await.is_ok()
            {}
            Ok(())
        });
    }
    output.build()
}

/// One joiner, and the pair that it joins now.
struct Deferred {
    context: Arc<JoinContext>,
    joiner: Joiner,
    queue: Arc<PairQueue>,
    current: Option<Current>,
    /// The span from the first pair on.
    phase: Option<Span>,
    /// The span of the current pair, within the phase.
    span: Span,
}

enum Current {
    Hybrid(Box<Hybrid>),
    Passes(Box<Passes>),
    Emitting(BuildEmitter),
}

impl Deferred {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let batch = match &mut self.current {
                None => {
                    self.span = Span::none();
                    let Some(pair) = self.queue.take().await else {
                        self.phase = None;
                        return Ok(None);
                    };
                    self.current = Some(self.begin(pair).await?);
                    continue;
                }
                Some(Current::Hybrid(hybrid)) => {
                    if let Some(batch) = hybrid.next(&self.context, &self.span).await? {
                        return Ok(Some(batch));
                    }
                    let Some(Current::Hybrid(hybrid)) = self.current.take() else { unreachable!("just matched") };
                    let (pairs, emitter) = self.span.in_scope(|| hybrid.finish(&self.context))?;
                    self.queue.split(pairs);
                    self.current = Some(Current::Emitting(emitter));
                    continue;
                }
                Some(Current::Passes(passes)) => passes.next(&self.context, &self.joiner, &self.span).await?,
                Some(Current::Emitting(emitter)) => {
                    let _working = self.span.enter();
                    emitter.next_batch().map_err(to_datafusion)?
                }
            };
            if batch.is_some() {
                return Ok(batch);
            }
            self.current = None;
        }
    }

    /// Starts on a pair of partitions.
    async fn begin(&mut self, pair: Pair) -> Result<Current> {
        let Joiner { memory, lane } = &self.joiner;
        let context = &self.context;
        let phase = self.phase.get_or_insert_with(|| {
            context.metrics.deferred_streams.add(1);
            lane.phase("join spilled partitions")
        });
        self.span = lane.pair(phase, pair.depth, pair.build.rows);
        let tuning = &context.tuning;
        // Partitioning again is useless if all rows have one hash. It is nearly useless if the last partitioning left more
        // than half of the rows together: a few keys then own them.
        let is_skewed = pair.depth > 1 && pair.build.rows > pair.siblings / 2;
        let can_split = pair.build.splittable
            && !is_skewed
            && pair.depth <= tuning.max_depth
            && Radix::has_bits(pair.used_bits, tuning.max_fanout);
        let input = context.store.read(Side::Build, pair.build.file);
        if !can_split {
            self.queue.split(Vec::new());
            return Ok(Current::Passes(Box::new(Passes::new(memory, input, pair.probe))));
        }
        let build = context.read_partition(input, Arc::clone(memory), pair.used_bits, pair.depth, &self.span).await?;
        let hybrid = Hybrid::try_new(context, memory, build, pair.probe, pair.depth)?;
        Ok(Current::Hybrid(Box::new(hybrid)))
    }
}

/// The files of one probe partition, read one after the other.
struct ProbeFiles {
    files: VecDeque<FilePartition>,
    input: Option<SendableRecordBatchStream>,
}

impl ProbeFiles {
    fn new(files: impl IntoIterator<Item = FilePartition>) -> Self {
        Self { files: files.into_iter().collect(), input: None }
    }

    async fn next(&mut self, context: &JoinContext) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(input) = &mut self.input {
                if let Some(batch) = input.next().await {
                    return Ok(Some(batch?));
                }
                self.input = None;
            }
            let Some(file) = self.files.pop_front() else { return Ok(None) };
            self.input = Some(context.store.read(Side::Probe, file.file));
        }
    }
}

/// A pair of partitions joined by the hybrid hash join, one level deeper.
struct Hybrid {
    build: ReadBuild,
    depth: usize,
    input: ProbeFiles,
    prober: Prober<DiskStore>,
}

impl Hybrid {
    fn try_new(
        context: &JoinContext,
        memory: &Arc<UnitMemory>,
        build: ReadBuild,
        probe: Vec<FilePartition>,
        depth: usize,
    ) -> Result<Self> {
        let prober = prober(context, &build.side, memory, false, None)?;
        Ok(Self { build, depth, input: ProbeFiles::new(probe), prober })
    }

    async fn next(&mut self, context: &JoinContext, pair: &Span) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = steps(context, &mut self.prober, pair).await? {
                return Ok(Some(batch));
            }
            let batch = self.input.next(context).await?;
            let _timer = context.metrics.deferred_time.timer();
            let _working = pair.enter();
            match batch {
                Some(batch) => self.prober.start(batch).map_err(to_datafusion)?,
                None if self.prober.end().map_err(to_datafusion)? => {}
                None => return Ok(None),
            }
        }
    }

    fn finish(self, context: &JoinContext) -> Result<(Vec<Pair>, BuildEmitter)> {
        let spilled = finish_spill(self.prober)?;
        let pairs = spilled_pairs(context, &self.build, vec![spilled], self.depth);
        Ok((pairs, emitter(context, self.build.side)))
    }
}

/// A pair of partitions that is joined in passes, because hashing cannot split its build side: each chunk of the build side
/// that fits in memory is joined with the whole probe partition.
struct Passes {
    build: SendableRecordBatchStream,
    /// The chunk being read.
    chunk: Option<ChunkBuild>,
    /// The batch that did not fit the previous chunk.
    pending: Option<RecordBatch>,
    probe: Vec<FilePartition>,
    /// For each probe batch, the rows that have found a match in the chunks so far.
    matched: Vec<MatchedRows>,
    matched_memory: Grant,
    chunks: usize,
    /// The span over the chunk being read or joined.
    pass: Span,
    state: PassState,
}

enum PassState {
    Filling,
    Scanning { side: Arc<BuildSide>, prober: Box<Prober<DiskStore>>, input: ProbeFiles, batch: usize, last: bool },
    Emitting { emitter: BuildEmitter, last: bool },
    Done,
}

impl Passes {
    fn new(memory: &Arc<UnitMemory>, build: SendableRecordBatchStream, probe: Vec<FilePartition>) -> Self {
        let matched_memory = memory.grant();
        let state = PassState::Filling;
        let matched = Vec::new();
        Self { build, chunk: None, pending: None, probe, matched, matched_memory, chunks: 0, pass: Span::none(), state }
    }

    async fn next(&mut self, context: &JoinContext, joiner: &Joiner, pair: &Span) -> Result<Option<RecordBatch>> {
        loop {
            match &mut self.state {
                PassState::Filling => self.state = self.fill(context, joiner, pair).await?,
                PassState::Scanning { side, prober, input, batch, last } => {
                    if let Some(output) = steps(context, prober, &self.pass).await? {
                        return Ok(Some(output));
                    }
                    if let Some(matched) = prober.finish_pass() {
                        match self.matched.get_mut(*batch - 1) {
                            Some(before) => *before = matched,
                            None => {
                                self.matched_memory.grow(matched.len().div_ceil(8));
                                self.matched.push(matched);
                            }
                        }
                    }
                    match input.next(context).await? {
                        Some(rows) => {
                            let _timer = context.metrics.deferred_time.timer();
                            let _working = self.pass.enter();
                            prober.start_pass(rows, self.matched.get(*batch), !*last).map_err(to_datafusion)?;
                            *batch += 1;
                        }
                        None => {
                            let emitter = emitter(context, Arc::clone(side));
                            self.state = PassState::Emitting { emitter, last: *last };
                        }
                    }
                }
                PassState::Emitting { emitter, last } => {
                    let _working = self.pass.enter();
                    let output = emitter.next_batch().map_err(to_datafusion)?;
                    if output.is_some() {
                        return Ok(output);
                    }
                    self.state = if *last { PassState::Done } else { PassState::Filling };
                }
                PassState::Done => return Ok(None),
            }
        }
    }

    /// Reads the next chunk of the build side.
    async fn fill(&mut self, context: &JoinContext, joiner: &Joiner, pair: &Span) -> Result<PassState> {
        let Joiner { memory, lane } = joiner;
        // The memory of the previous chunk must be free by now.
        self.state = PassState::Filling;
        self.pass = Span::none();
        let pass = lane.pass(pair, self.chunks + 1);
        let chunk = self.chunk.get_or_insert_with(|| ChunkBuild::new(Arc::clone(&context.plan), memory));
        if let Some(batch) = self.pending.take() {
            self.pending = chunk.push(batch).map_err(to_datafusion)?;
        }
        while self.pending.is_none()
            && let Some(batch) = self.build.next().await
        {
            let batch = batch?;
            let _working = pass.enter();
            self.pending = chunk.push(batch).map_err(to_datafusion)?;
        }
        let _timer = context.metrics.deferred_time.timer();
        let working = pass.enter();
        self.chunks += 1;
        context.metrics.chunk_passes.set_max(self.chunks);
        let chunk = self.chunk.take().unwrap_or_else(|| ChunkBuild::new(Arc::clone(&context.plan), memory));
        let side = Arc::new(chunk.finish().map_err(to_datafusion)?);
        let prober = Box::new(prober(context, &side, memory, false, None)?);
        let input = ProbeFiles::new(self.probe.iter().cloned());
        drop(working);
        self.pass = pass;
        Ok(PassState::Scanning { side, prober, input, batch: 0, last: self.pending.is_none() })
    }
}

/// A prober of a build side, with what it needs to spill if part of the build side is in files. It may partition rows first,
/// and kernels may aggregate its pairs for `aggregating`.
pub(super) fn prober(
    context: &JoinContext,
    build: &Arc<BuildSide>,
    memory: &Arc<UnitMemory>,
    may_partition: bool,
    aggregating: Option<AggregatingStream>,
) -> Result<Prober<DiskStore>> {
    let spill = ProbeSpill::try_new(&context.plan.spec, build, Arc::clone(&context.store), memory, context.tuning)
        .map_err(to_datafusion)?;
    let facts = Arc::clone(&context.facts);
    let finder = pair_finder(&context.plan, build, memory, aggregating, may_partition);
    context.metrics.radix_streams.add(usize::from(finder.partitions_rows()));
    Ok(Prober::new(&context.plan, Arc::<BuildSide>::clone(build), facts, spill, finder))
}

/// Returns the emitter of a build side's rows after all probing.
pub(super) fn emitter(context: &JoinContext, build: Arc<BuildSide>) -> BuildEmitter {
    BuildEmitter::new(Arc::clone(&context.plan), build, Arc::clone(&context.facts))
}

/// The probe partitions that a prober has written.
pub(super) fn finish_spill(prober: Prober<DiskStore>) -> Result<Vec<Option<FilePartition>>> {
    prober.into_spill().map_or(Ok(Vec::new()), ProbeSpill::finish).map_err(to_datafusion)
}

/// Continues with the current batch of a prober until it outputs rows; `None` when the batch is finished.
async fn steps(context: &JoinContext, prober: &mut Prober<DiskStore>, part: &Span) -> Result<Option<RecordBatch>> {
    loop {
        let step = {
            let _timer = context.metrics.deferred_time.timer();
            let _working = part.enter();
            prober.step().map_err(to_datafusion)?
        };
        match step {
            Step::Output(batch) => return Ok(Some(batch)),
            Step::Working => tokio::task::consume_budget().await,
            Step::Waiting(wait) => wait.await,
            Step::Finished => return Ok(None),
        }
    }
}
