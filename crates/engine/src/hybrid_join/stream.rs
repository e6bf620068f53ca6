//! One output stream of a join.
//!
//! Its states. A stream that shares its inputs may take over the input, or the work, of a stream that was dropped.
//!
//! ```text
//!            build side read        input ended,               build rows
//!            or awaited             others still read          emitted
//!   Start ---------------> Probing ------------------> Done   <---------.
//!     |                     ^   |                       ^               |  no more pairs
//!     |                     |   | last input ended      |               |
//!     |    next shared      '---|                       |               |
//!     |    input                v                       |               |
//!     |                 Finishing(Emitting) --> Finishing(Deferred) ----'
//!     |                                             ^
//!     |---------------------------------------------'  work of a dropped stream
//!     '--> Exchanged --> Done                          the sides have changed roles
//! ```

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use overspill_join::JoinType;
use overspill_join::hybrid::{AggregatingStream, Prober, Step};
use overspill_join::memory::UnitMemory;
use tracing::Span;

use super::context::{JoinContext, ReadBuild, ReadInput};
use super::deferred::{HybridProbe, Joiner, ProbedInput, Work, emitter, finish_spill, join_pairs, prober};
use super::execution::Execution;
use super::pairs::spilled_pairs;
use super::side_swap::Race;
use crate::join_execution::disk::DiskStore;
use crate::join_execution::input::{Next, ProbeInput, Rest};
use crate::join_execution::output::OutputBatches;
use crate::join_execution::shared_build::SharedBuild;
use crate::join_execution::timeline::{Lane, LaneName};
use crate::join_execution::to_datafusion;

/// The inputs that a stream has to itself. It shares the others with the streams of the execution.
pub(super) struct Inputs {
    pub build: Option<SendableRecordBatchStream>,
    pub probe: Option<SendableRecordBatchStream>,
    /// The race of the build side, if these inputs may change their roles.
    pub race: Option<Race>,
}

/// One output stream of a join: reads, joins, and returns batches.
pub(super) struct HybridJoinStream {
    context: Arc<JoinContext>,
    execution: Option<Arc<Execution>>,
    partition: usize,
    lane: Lane,
    memory: Arc<UnitMemory>,
    state: State,
    output: OutputBatches,
    /// The phase that outputs the build rows with or without a match.
    emitting: Span,
    /// The remaining rows of the limit, if there is one.
    remaining: Option<usize>,
    /// Receives the aggregates of kernels over pairs with the build side in memory, once the stream probes it; `None` if the
    /// output needs all pairs.
    aggregating: Option<AggregatingStream>,
    baseline: BaselineMetrics,
}

enum State {
    Start(Inputs),
    Probing(Box<Probing>),
    Finishing(Work),
    /// Returns the rows of another join, as the sides have changed roles.
    Exchanged(SendableRecordBatchStream),
    Done,
}

struct Probing {
    build: Arc<ReadBuild>,
    input: SendableRecordBatchStream,
    prober: Prober<DiskStore>,
    /// Whether the input was taken over from a dropped stream: its output is not needed.
    silent: bool,
    phase: Span,
    /// Probe rows so far.
    rows: usize,
}

impl HybridJoinStream {
    pub fn new(
        execution: Arc<Execution>,
        partition: usize,
        inputs: Inputs,
        fetch: Option<usize>,
        aggregating: Option<AggregatingStream>,
        baseline: BaselineMetrics,
    ) -> Self {
        let context = Arc::clone(&execution.context);
        let plan = &context.plan;
        let output = OutputBatches::new(&plan.spec.output_schema, plan.batch_size);
        Self {
            memory: context.memory.unit(),
            execution: Some(execution),
            partition,
            lane: context.timeline.lane(LaneName::Stream(partition)),
            state: State::Start(inputs),
            output,
            emitting: Span::none(),
            remaining: fetch,
            aggregating,
            baseline,
            context,
        }
    }

    pub fn into_stream(self) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.context.plan.spec.output_schema);
        let batches = futures::stream::try_unfold(self, |mut stream| async move {
            match stream.next().await {
                Ok(batch) => Ok(batch.map(|batch| (batch, stream))),
                Err(error) => Err(stream.fail(error)),
            }
        });
        make_cooperative(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }

    /// The next batch, full but for the last.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.output.next_full() {
                return Ok(self.limit(batch));
            }
            match self.next_rows().await? {
                // The coalescer does not count rows without columns.
                Some(rows) if rows.num_columns() == 0 => return Ok(self.limit(rows)),
                Some(rows) => self.output.push(rows)?,
                None if self.output.is_empty() => return Ok(None),
                None => self.output.finish()?,
            }
        }
    }

    fn limit(&mut self, mut batch: RecordBatch) -> Option<RecordBatch> {
        if let Some(remaining) = &mut self.remaining {
            if *remaining == 0 {
                return None;
            }
            if batch.num_rows() >= *remaining {
                batch = batch.slice(0, std::mem::take(remaining));
                self.give_up();
            } else {
                *remaining -= batch.num_rows();
            }
        }
        Some(batch.record_output(&self.baseline))
    }

    /// The next rows, in batches of any size.
    async fn next_rows(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            match &mut self.state {
                State::Start(_) => self.start().await?,
                State::Probing(probing) => {
                    if let Some(rows) = probing.next(&self.context, &self.baseline).await? {
                        return Ok(Some(rows));
                    }
                    self.end_input()?;
                }
                State::Finishing(Work::Emitting(emitter, joiners, pairs)) => {
                    let rows = {
                        let _timer = self.baseline.elapsed_compute().timer();
                        let _working = self.emitting.enter();
                        emitter.next_batch().map_err(to_datafusion)?
                    };
                    if rows.is_some() {
                        return Ok(rows);
                    }
                    let (joiners, pairs) = (std::mem::take(joiners), std::mem::take(pairs));
                    self.emitting = Span::none();
                    // Frees the build side: the partitions in files need its memory now.
                    self.state = State::Done;
                    self.state = State::Finishing(Work::Deferred(join_pairs(&self.context, joiners, pairs)));
                }
                State::Finishing(Work::Deferred(rows)) => match rows.next().await {
                    Some(rows) => return rows.map(Some),
                    None => self.state = State::Done,
                },
                State::Exchanged(rows) => match rows.next().await.transpose()? {
                    Some(rows) => {
                        return Ok(Some(rows.with_schema(Arc::clone(&self.context.plan.spec.output_schema))?));
                    }
                    None => self.state = State::Done,
                },
                State::Done => {
                    self.execution = None;
                    return Ok(None);
                }
            }
        }
    }

    /// Reads the build side, or waits for the stream that reads it.
    async fn start(&mut self) -> Result<()> {
        let Some(execution) = self.execution.clone() else {
            self.state = State::Done;
            return Ok(());
        };
        let State::Start(inputs) = &mut self.state else { return Ok(()) };
        let build = match execution.build.as_ref().and_then(SharedBuild::get) {
            Some(build) => {
                let _waiting = self.lane.phase("wait for build side");
                build.await.map_err(DataFusionError::Shared)?
            }
            None => {
                let Some(input) = inputs.build.take() else { return Ok(()) };
                let memory = Arc::clone(&self.memory);
                Arc::new(self.context.read_input(input, memory, &self.lane, inputs.race.as_ref()).await?)
            }
        };
        let State::Start(inputs) = std::mem::replace(&mut self.state, State::Done) else { return Ok(()) };
        let build = match build.as_ref() {
            ReadInput::Build(build) => Arc::clone(build),
            ReadInput::Exchanged(join) => {
                // A build side of its own is probed by one stream.
                let partition = if execution.build.is_some() { self.partition } else { 0 };
                self.state = State::Exchanged(join.execute(partition, Arc::clone(&self.context.task))?);
                return Ok(());
            }
        };
        // Without build rows the probe side need not be read, unless its unmatched rows are in the output. A stream that
        // never reads its input ends it for all streams.
        if build.rows == 0 && !self.context.plan.spec.join_type.keeps_unmatched_probe() {
            if let Some(race) = &self.context.race {
                race.probe.close(self.partition);
            }
            return Ok(());
        }
        match (inputs.probe, &execution.inputs) {
            (Some(stream), _) => self.read(build, ProbeInput { stream, abandoned: None }),
            (None, Some(inputs)) => self.go_on(build, inputs.first(self.partition)?),
            (None, None) => Ok(()),
        }
    }

    fn read(&mut self, build: Arc<ReadBuild>, input: ProbeInput<HybridProbe>) -> Result<()> {
        let silent = input.abandoned.is_some();
        let phase = self.lane.phase("probe");
        let prober = match input.abandoned {
            Some(prober) => *prober,
            None => prober(&self.context, &build.side, &self.memory, true, self.aggregating.take())?,
        };
        self.state = State::Probing(Box::new(Probing { build, input: input.stream, prober, silent, phase, rows: 0 }));
        Ok(())
    }

    fn end_input(&mut self) -> Result<()> {
        let State::Probing(probing) = std::mem::replace(&mut self.state, State::Done) else { return Ok(()) };
        let Probing { build, prober, phase, rows, .. } = *probing;
        self.context.metrics.filtered_streams.add(usize::from(prober.is_filtered()));
        let spilled = phase.in_scope(|| finish_spill(prober))?;
        phase.record("rows", rows);
        drop(phase);
        let joiner = self.context.memory.is_secured().then(|| self.joiner());
        let ended = ProbedInput { spilled, joiner };
        let next = match self.execution.as_ref().and_then(|execution| execution.inputs.as_ref()) {
            Some(inputs) => inputs.end(ended)?,
            None => Next::Finish(vec![ended]),
        };
        self.go_on(build, next)
    }

    fn go_on(&mut self, build: Arc<ReadBuild>, next: Next<HybridProbe>) -> Result<()> {
        match next {
            Next::Read(input) => self.read(build, input),
            Next::Finish(ended) => {
                let (joiners, spilled): (Vec<_>, Vec<_>) =
                    ended.into_iter().map(|input| (input.joiner, input.spilled)).unzip();
                let joiners = joiners.into_iter().flatten().chain([self.joiner()]).collect();
                let pairs = spilled_pairs(&self.context, &build, spilled, 0);
                let emitter = emitter(&self.context, Arc::clone(&build.side));
                if self.context.plan.spec.join_type.emits_build_at_end() {
                    self.emitting = self.lane.phase("emit build rows");
                }
                self.state = State::Finishing(Work::Emitting(emitter, joiners, pairs));
                Ok(())
            }
            Next::Resume(Rest { work, rows }) => {
                for rows in rows {
                    self.output.push(rows)?;
                }
                self.state = State::Finishing(work);
                Ok(())
            }
            Next::End => Ok(()),
        }
    }

    fn joiner(&self) -> Joiner {
        Joiner { memory: Arc::clone(&self.memory), lane: self.lane.clone() }
    }

    /// Ends the stream early. The unread part of a shared input is left to the other streams.
    fn give_up(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Done);
        let Some(inputs) = self.execution.take().and_then(|execution| execution.inputs.clone()) else { return };
        match state {
            State::Probing(probing) => {
                let Probing { input, prober, .. } = *probing;
                inputs.give_back(ProbeInput { stream: input, abandoned: Some(Box::new(prober)) });
            }
            State::Finishing(work) => {
                // If the coalescer fails to finish, it has failed to allocate; the error cannot be reported here.
                let _ = self.output.finish();
                let rows = std::iter::from_fn(|| self.output.next_full()).collect();
                inputs.hand_over(Rest { work, rows });
            }
            State::Start(_) | State::Exchanged(_) | State::Done => {}
        }
    }

    /// Ends the stream with an error. All streams that share its inputs end with the same error.
    fn fail(&mut self, error: DataFusionError) -> DataFusionError {
        self.state = State::Done;
        match self.execution.take().and_then(|execution| execution.inputs.clone()) {
            Some(inputs) => inputs.fail(error),
            None => error,
        }
    }
}

impl Drop for HybridJoinStream {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Probing {
    async fn next(&mut self, context: &JoinContext, baseline: &BaselineMetrics) -> Result<Option<RecordBatch>> {
        loop {
            let step = {
                let _timer = baseline.elapsed_compute().timer();
                let _phase = context.metrics.join_time.timer();
                let _working = self.phase.enter();
                self.prober.step().map_err(to_datafusion)?
            };
            match step {
                Step::Output(rows) if !self.silent => return Ok(Some(rows)),
                Step::Output(_) | Step::Working => tokio::task::consume_budget().await,
                Step::Waiting(wait) => wait.await,
                Step::Finished => {
                    // NOT IN returns no rows once a probe key is null: the rest need not be read.
                    let is_not_in = context.plan.spec.null_aware && context.plan.spec.join_type == JoinType::LeftAnti;
                    if is_not_in && context.facts.has_null() {
                        return Ok(None);
                    }
                    let Some(batch) = self.input.next().await else {
                        let _timer = baseline.elapsed_compute().timer();
                        let _phase = context.metrics.join_time.timer();
                        let _working = self.phase.enter();
                        if self.prober.end().map_err(to_datafusion)? {
                            continue;
                        }
                        return Ok(None);
                    };
                    let batch = batch?;
                    let _timer = baseline.elapsed_compute().timer();
                    let _phase = context.metrics.join_time.timer();
                    let _working = self.phase.enter();
                    self.rows += batch.num_rows();
                    context.metrics.input_batches.add(1);
                    context.metrics.input_rows.add(batch.num_rows());
                    self.prober.start(batch).map_err(to_datafusion)?;
                }
            }
        }
    }
}
