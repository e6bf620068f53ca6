//! Joins spilled rows, one pair of partitions at a time.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use overspill_join::hybrid::PairAggregation;
use overspill_join::hybrid::{BuildEmitter, BuildSide, ChunkBuild, MatchedRows, ProbeSpill, Prober, Step, pair_finder};
use overspill_join::memory::{Grant, UnitMemory};
use overspill_join::spec::Side;
use overspill_join::spill::Radix;
use tracing::Span;

use super::disk::DiskStore;
use super::execution::{FilePartition, JoinContext, ReadBuild};
use super::expressions::to_datafusion;
use super::timeline::Lane;

/// A pair of partitions to join.
#[derive(Clone)]
pub(super) struct Task {
    build: FilePartition,
    /// The probe partition, in several files if several streams have written it.
    probe: Vec<FilePartition>,
    /// How often the rows have been partitioned.
    depth: usize,
    /// The number of hash bits that all rows of the partition share.
    used_bits: u32,
    /// The number of rows of the build side that was split into this and other partitions.
    siblings: usize,
}

/// The pairs of partitions that a build side has spilled, with the probe partitions of each stream that probed it.
pub(super) fn tasks(
    context: &JoinContext,
    build: &ReadBuild,
    probe: Vec<Vec<Option<FilePartition>>>,
    depth: usize,
) -> Vec<Task> {
    let Some(radix) = build.side.radix() else { return Vec::new() };
    let mut probe = probe;
    let mut tasks = Vec::new();
    for (number, partition) in build.spilled.iter().enumerate() {
        let probe: Vec<_> = probe.iter_mut().filter_map(|stream| stream.get_mut(number)?.take()).collect();
        let Some(build_partition) = partition else { continue };
        // Without probe rows, the only possible output is unmatched build rows.
        if !probe.is_empty() || context.plan.spec.join_type.keeps_unmatched_build() {
            tasks.push(Task {
                build: build_partition.clone(),
                probe,
                depth: depth + 1,
                used_bits: radix.used_bits(),
                siblings: build.rows,
            });
        }
    }
    tasks
}

/// The pairs of partitions that one stream has to join, and the current pair.
pub(super) struct Deferred {
    context: Arc<JoinContext>,
    memory: Arc<UnitMemory>,
    /// A stack, so that the partitions of a partition are joined before its siblings.
    tasks: Vec<Task>,
    current: Option<Current>,
    lane: Lane,
    phase: Span,
    /// The span of the current pair, within the phase.
    pair: Span,
}

enum Current {
    Hybrid(Box<Hybrid>),
    Passes(Box<Passes>),
    Emitting(BuildEmitter),
}

impl Deferred {
    pub fn new(context: Arc<JoinContext>, memory: Arc<UnitMemory>, lane: Lane, tasks: Vec<Task>) -> Self {
        let phase = if tasks.is_empty() { Span::none() } else { lane.phase("join spilled partitions") };
        Self { context, memory, tasks, current: None, lane, phase, pair: Span::none() }
    }

    /// The next output rows.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            match &mut self.current {
                None => match self.tasks.last() {
                    Some(task) => {
                        // The previous pair is finished.
                        self.pair = Span::none();
                        let pair = self.lane.pair(&self.phase, task.depth, task.build.rows);
                        let current = begin(&self.context, &self.memory, task.clone(), &pair).await?;
                        self.pair = pair;
                        // Not earlier: a stream that is dropped while it waits passes its tasks on to another.
                        self.tasks.pop();
                        self.current = Some(current);
                    }
                    None => {
                        (self.pair, self.phase) = (Span::none(), Span::none());
                        return Ok(None);
                    }
                },
                Some(Current::Hybrid(hybrid)) => {
                    if let Some(batch) = hybrid.next(&self.context, &self.pair).await? {
                        return Ok(Some(batch));
                    }
                    let Some(Current::Hybrid(hybrid)) = self.current.take() else { unreachable!("just matched") };
                    let (tasks, emitter) = self.pair.in_scope(|| hybrid.finish(&self.context))?;
                    self.tasks.extend(tasks);
                    self.current = Some(Current::Emitting(emitter));
                }
                Some(Current::Passes(passes)) => {
                    let batch = passes.next(&self.context, &self.memory, &self.lane, &self.pair).await?;
                    if batch.is_some() {
                        return Ok(batch);
                    }
                    self.current = None;
                }
                Some(Current::Emitting(emitter)) => {
                    let _working = self.pair.enter();
                    let batch = emitter.next_batch().map_err(to_datafusion)?;
                    if batch.is_some() {
                        return Ok(batch);
                    }
                    self.current = None;
                }
            }
        }
    }
}

/// Starts on a pair of partitions.
async fn begin(context: &JoinContext, memory: &Arc<UnitMemory>, task: Task, pair: &Span) -> Result<Current> {
    let tuning = &context.tuning;
    // Partitioning again is useless if all rows have one hash. It is nearly useless if the last partitioning left more than
    // half of the rows together: a few keys then own them.
    let is_skewed = task.depth > 1 && task.build.rows > task.siblings / 2;
    let can_split = task.build.splittable
        && !is_skewed
        && task.depth <= tuning.max_depth
        && Radix::has_bits(task.used_bits, tuning.max_fanout);
    let input = context.store.read(Side::Build, task.build.file)?;
    if !can_split {
        return Ok(Current::Passes(Box::new(Passes::new(memory, input, task.probe))));
    }
    let build = context.read_partition(input, Arc::clone(memory), task.used_bits, task.depth, pair).await?;
    let hybrid = Hybrid::try_new(context, memory, build, task.probe, task.depth)?;
    Ok(Current::Hybrid(Box::new(hybrid)))
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
            self.input = Some(context.store.read(Side::Probe, file.file)?);
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

    fn finish(self, context: &JoinContext) -> Result<(Vec<Task>, BuildEmitter)> {
        let spilled = finish_spill(self.prober)?;
        let tasks = tasks(context, &self.build, vec![spilled], self.depth);
        Ok((tasks, emitter(context, self.build.side)))
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
    /// The memory of `matched`.
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

    async fn next(
        &mut self,
        context: &JoinContext,
        memory: &Arc<UnitMemory>,
        lane: &Lane,
        pair: &Span,
    ) -> Result<Option<RecordBatch>> {
        loop {
            match &mut self.state {
                PassState::Filling => self.state = self.fill(context, memory, lane, pair).await?,
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
    async fn fill(
        &mut self,
        context: &JoinContext,
        memory: &Arc<UnitMemory>,
        lane: &Lane,
        pair: &Span,
    ) -> Result<PassState> {
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
/// and kernels may aggregate its pairs for `aggregation`.
pub(super) fn prober(
    context: &JoinContext,
    build: &Arc<BuildSide>,
    memory: &Arc<UnitMemory>,
    may_partition: bool,
    aggregation: Option<&Arc<PairAggregation>>,
) -> Result<Prober<DiskStore>> {
    let spill = ProbeSpill::try_new(&context.plan.spec, build, Arc::clone(&context.store), memory, context.tuning)
        .map_err(to_datafusion)?;
    let facts = Arc::clone(&context.facts);
    let finder = pair_finder(&context.plan, build, memory, aggregation, may_partition);
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
            Step::Finished => return Ok(None),
        }
    }
}
