//! One output stream of a theta join.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use tracing::Span;

use super::context::{Build, ThetaContext};
use super::execution::Execution;
use super::progress::{BuildRows, Progress, ThetaProbe};
use crate::join_execution::input::{Next, ProbeInput, Rest};
use crate::join_execution::output::OutputBatches;
use crate::join_execution::timeline::{Lane, LaneName};

/// One output stream of a join: reads, joins, and returns batches.
pub(super) struct ThetaJoinStream {
    context: Arc<ThetaContext>,
    execution: Option<Arc<Execution>>,
    partition: usize,
    lane: Lane,
    state: State,
    /// The build side, once it is known.
    build: Option<Arc<Build>>,
    output: OutputBatches,
    baseline: BaselineMetrics,
}

enum State {
    /// Includes the probe input, unless the streams share their inputs.
    Start(Option<SendableRecordBatchStream>),
    Joining {
        input: SendableRecordBatchStream,
        progress: Box<Progress>,
        /// Whether the input was taken over from a dropped stream: its output is not needed.
        silent: bool,
        _phase: Span,
    },
    PuttingBuildRowsOut(BuildRows),
    Done,
}

impl ThetaJoinStream {
    /// A stream over a probe input of its own, or over those that the streams of the execution share.
    pub fn new(
        execution: Arc<Execution>,
        partition: usize,
        input: Option<SendableRecordBatchStream>,
        baseline: BaselineMetrics,
    ) -> Self {
        let context = Arc::clone(&execution.context);
        let output = OutputBatches::new(&context.spec.output_schema, context.spec.batch_size);
        let lane = context.timeline.lane(LaneName::Stream(partition));
        let (execution, state) = (Some(execution), State::Start(input));
        Self { context, execution, partition, lane, state, build: None, output, baseline }
    }

    pub fn into_stream(self) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.context.spec.output_schema);
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
                return Ok(Some(batch.record_output(&self.baseline)));
            }
            match self.next_rows().await? {
                // The coalescer does not count rows without columns.
                Some(rows) if rows.num_columns() == 0 => return Ok(Some(rows.record_output(&self.baseline))),
                Some(rows) => self.output.push(rows)?,
                None if self.output.is_empty() => return Ok(None),
                None => self.output.finish()?,
            }
        }
    }

    /// The next rows, in batches of any size.
    async fn next_rows(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            match (&mut self.state, &self.build) {
                (State::Start(_), None) => self.read_build().await?,
                (State::Start(_), Some(_)) => self.start()?,
                (State::Joining { input, progress, silent, .. }, Some(build)) => {
                    match progress.next(&self.context, build, input, &self.baseline).await? {
                        Some(_) if *silent => tokio::task::consume_budget().await,
                        Some(rows) => return Ok(Some(rows)),
                        None => self.end_input()?,
                    }
                }
                (State::PuttingBuildRowsOut(rows), Some(build)) => match rows.next(&self.context, build).await? {
                    Some(rows) => return Ok(Some(rows)),
                    None => self.state = State::Done,
                },
                _ => {
                    (self.state, self.build, self.execution) = (State::Done, None, None);
                    return Ok(None);
                }
            }
        }
    }

    /// Reads the build side, or waits for the stream that reads it.
    async fn read_build(&mut self) -> Result<()> {
        let Some(build) = self.execution.as_ref().and_then(|execution| execution.build.get()) else {
            self.state = State::Done;
            return Ok(());
        };
        let _waiting = self.lane.phase("wait for build side");
        self.build = Some(build.await.map_err(DataFusionError::Shared)?);
        Ok(())
    }

    fn start(&mut self) -> Result<()> {
        let State::Start(input) = std::mem::replace(&mut self.state, State::Done) else { return Ok(()) };
        // Without build rows the probe side need not be read, unless its unmatched rows are in the output. A stream that
        // never reads its input ends it for all streams.
        let is_empty = self.build.as_ref().is_none_or(|build| build.is_empty());
        if is_empty && !self.context.spec.join_type.keeps_unmatched_probe() {
            return Ok(());
        }
        let inputs = self.execution.as_ref().and_then(|execution| execution.inputs.clone());
        match (input, inputs) {
            (Some(stream), _) => self.join(ProbeInput { stream, abandoned: None }),
            (None, Some(inputs)) => self.go_on(inputs.first(self.partition)?),
            (None, None) => Ok(()),
        }
    }

    fn join(&mut self, input: ProbeInput<ThetaProbe>) -> Result<()> {
        let Some(build) = &self.build else { return Ok(()) };
        let silent = input.abandoned.is_some();
        let progress = match input.abandoned {
            Some(progress) => progress,
            None => Box::new(Progress::new(&self.context, build, self.context.memory.unit())),
        };
        self.state = State::Joining { input: input.stream, progress, silent, _phase: self.lane.phase("probe") };
        Ok(())
    }

    fn end_input(&mut self) -> Result<()> {
        self.state = State::Done;
        let next = match self.execution.as_ref().and_then(|execution| execution.inputs.as_ref()) {
            Some(inputs) => inputs.end(())?,
            None => Next::Finish(vec![]),
        };
        self.go_on(next)
    }

    fn go_on(&mut self, next: Next<ThetaProbe>) -> Result<()> {
        match next {
            Next::Read(input) => self.join(input),
            Next::Finish(_) => {
                if let Some(build) = &self.build
                    && self.context.spec.join_type.emits_build_at_end()
                {
                    self.state = State::PuttingBuildRowsOut(BuildRows::new(&self.context, build)?);
                }
                Ok(())
            }
            Next::Resume(Rest { work, rows }) => {
                for rows in rows {
                    self.output.push(rows)?;
                }
                self.state = State::PuttingBuildRowsOut(work);
                Ok(())
            }
            Next::End => Ok(()),
        }
    }

    /// Ends the stream early. The unread part of a shared input is left to the other streams.
    fn give_up(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Done);
        let Some(inputs) = self.execution.take().and_then(|execution| execution.inputs.clone()) else { return };
        match state {
            State::Joining { input, progress, .. } => {
                inputs.give_back(ProbeInput { stream: input, abandoned: Some(progress) });
            }
            State::PuttingBuildRowsOut(work) => {
                // If the coalescer fails to finish, it has failed to allocate; the error cannot be reported here.
                let _ = self.output.finish();
                let rows = std::iter::from_fn(|| self.output.next_full()).collect();
                inputs.hand_over(Rest { work, rows });
            }
            State::Start(_) | State::Done => {}
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

impl Drop for ThetaJoinStream {
    fn drop(&mut self) {
        self.give_up();
    }
}
