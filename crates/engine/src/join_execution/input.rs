//! The probe inputs of a join with streams that share one build side and return build rows at the end.
//!
//! It is known only after the last probe row which build rows have no match. No stream waits for another, as the other may
//! never be polled again. Instead, a stream that has finished its own input takes over inputs that have not been started or
//! that were abandoned. The stream that ends the last input returns the build rows.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::TryStreamExt;
use overspill_join::JoinType;
use parking_lot::Mutex;

/// The state that the streams of a kind of join pass to each other.
pub(crate) trait SharedProbe {
    /// How far an input has been joined.
    type Progress;
    /// What an input leaves behind when it has been read to the end.
    type Ended;
    /// The work of a stream after the probe side has been read.
    type Work;
}

/// A probe input and how far it has been read.
pub(crate) struct ProbeInput<J: SharedProbe> {
    pub stream: SendableRecordBatchStream,
    /// The progress of a stream that was dropped early. The rest of the input is joined only to find which build rows have
    /// matches; its output is discarded.
    pub abandoned: Option<Box<J::Progress>>,
}

/// Opens a partition of the probe side.
pub(crate) type OpenProbe = Box<dyn Fn(usize) -> Result<SendableRecordBatchStream> + Send + Sync>;

/// Opens partitions of a plan.
pub(crate) fn open_plan(plan: &Arc<dyn ExecutionPlan>, task: Arc<TaskContext>) -> OpenProbe {
    let plan = Arc::clone(plan);
    Box::new(move |partition| plan.execute(partition, Arc::clone(&task)))
}

/// Like [`open_plan`], but executes a partition when its stream is first polled.
pub(crate) fn open_plan_late(plan: &Arc<dyn ExecutionPlan>, task: Arc<TaskContext>) -> OpenProbe {
    let plan = Arc::clone(plan);
    Box::new(move |partition| {
        let (schema, late, task) = (plan.schema(), Arc::clone(&plan), Arc::clone(&task));
        let batches = futures::stream::once(async move { late.execute(partition, task) }).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    })
}

/// The probe inputs of all streams.
pub(crate) struct ProbeInputs<J: SharedProbe> {
    open: OpenProbe,
    state: Mutex<State<J>>,
}

struct State<J: SharedProbe> {
    inputs: Vec<Slot<J>>,
    /// Inputs that have not been read to the end.
    unread: usize,
    /// What all ended inputs left behind.
    ended: Vec<J::Ended>,
    /// The unfinished work of a stream that was dropped while it returned build rows.
    rest: Option<Rest<J>>,
    /// The error of a stream that failed while it read an input.
    failed: Option<Arc<DataFusionError>>,
}

/// The work of a stream after the probe side has been read, and rows that it has made but not returned.
pub(crate) struct Rest<J: SharedProbe> {
    pub work: J::Work,
    pub rows: Vec<RecordBatch>,
}

enum Slot<J: SharedProbe> {
    /// The stream of this number has not been requested.
    Unopened,
    Waiting(ProbeInput<J>),
    /// Being read, or already read.
    Taken,
}

/// The next step of a stream after it has ended an input.
pub(crate) enum Next<J: SharedProbe> {
    /// Continue with another input.
    Read(ProbeInput<J>),
    /// Return the build rows, using what all inputs left behind.
    Finish(Vec<J::Ended>),
    /// Continue the work of a stream that was dropped while it returned build rows.
    Resume(Rest<J>),
    /// Nothing: other streams are still reading.
    End,
}

impl<J: SharedProbe> ProbeInputs<J> {
    /// The partitions of the probe side, which `open` opens. `None` if a stream may end without the others: a single one, or one
    /// of a join that returns no build rows at the end.
    pub fn new(join_type: JoinType, partitions: usize, open: OpenProbe) -> Option<Arc<Self>> {
        if partitions <= 1 || !join_type.emits_build_at_end() {
            return None;
        }
        let inputs = (0..partitions).map(|_| Slot::Unopened).collect();
        let state = State { inputs, unread: partitions, ended: Vec::new(), rest: None, failed: None };
        Some(Arc::new(Self { open, state: Mutex::new(state) }))
    }

    /// Opens an input, unless another stream has taken it over.
    pub fn open(&self, partition: usize) -> Result<()> {
        let mut state = self.state.lock();
        if matches!(state.inputs[partition], Slot::Unopened) {
            let stream = (self.open)(partition)?;
            state.inputs[partition] = Slot::Waiting(ProbeInput { stream, abandoned: None });
        }
        Ok(())
    }

    /// The first input of a stream: its own if it is still there.
    pub fn first(&self, partition: usize) -> Result<Next<J>> {
        let mut state = self.state.lock();
        self.check(&state)?;
        if let Slot::Waiting(_) = &state.inputs[partition]
            && let Slot::Waiting(input) = std::mem::replace(&mut state.inputs[partition], Slot::Taken)
        {
            return Ok(Next::Read(input));
        }
        self.another(&mut state)
    }

    /// Ends an input and returns the stream's next step.
    pub fn end(&self, ended: J::Ended) -> Result<Next<J>> {
        let mut state = self.state.lock();
        self.check(&state)?;
        state.ended.push(ended);
        state.unread -= 1;
        if state.unread == 0 {
            return Ok(Next::Finish(std::mem::take(&mut state.ended)));
        }
        self.another(&mut state)
    }

    /// Returns an input that its stream has not read to the end.
    pub fn give_back(&self, input: ProbeInput<J>) {
        let mut state = self.state.lock();
        if let Some(slot) = state.inputs.iter_mut().find(|slot| matches!(slot, Slot::Taken)) {
            *slot = Slot::Waiting(input);
        }
    }

    /// Leaves the work of the last stream to the next stream that is polled.
    pub fn hand_over(&self, rest: Rest<J>) {
        self.state.lock().rest = Some(rest);
    }

    /// The error of a stream that failed while it read an input. The other streams fail with the same error.
    pub fn fail(&self, error: DataFusionError) -> DataFusionError {
        let error = Arc::new(error);
        self.state.lock().failed.get_or_insert_with(|| Arc::clone(&error));
        DataFusionError::Shared(error)
    }

    fn check(&self, state: &State<J>) -> Result<()> {
        match &state.failed {
            Some(error) => Err(DataFusionError::Shared(Arc::clone(error))),
            None => Ok(()),
        }
    }

    fn another(&self, state: &mut State<J>) -> Result<Next<J>> {
        if let Some(rest) = state.rest.take() {
            return Ok(Next::Resume(rest));
        }
        for partition in 0..state.inputs.len() {
            match std::mem::replace(&mut state.inputs[partition], Slot::Taken) {
                Slot::Unopened => {
                    let stream = (self.open)(partition)?;
                    return Ok(Next::Read(ProbeInput { stream, abandoned: None }));
                }
                Slot::Waiting(input) => return Ok(Next::Read(input)),
                Slot::Taken => {}
            }
        }
        Ok(Next::End)
    }
}
