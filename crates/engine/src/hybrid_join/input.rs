//! The probe inputs of a join whose streams share one build side and put out build rows at the end.
//!
//! Which build rows have no match is known only when every probe row has been seen. No stream waits for another to see
//! them, for the other may never be polled again: a stream that is done with its own input takes over those that have
//! not been started or have been given up, and the one that ends the last input puts the build rows out.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;

/// What the streams of a kind of join leave to each other.
pub(crate) trait SharedProbe {
    /// How far an input has been joined.
    type Progress;
    /// What remains of an input that has been read to the end.
    type Ended;
    /// What a stream does after the probe side has been read.
    type Work;
}

/// A probe input and how far it has been read.
pub(crate) struct ProbeInput<J: SharedProbe> {
    pub stream: SendableRecordBatchStream,
    /// The progress of a stream that was given up on the way. What is left of the input is joined only as far as it
    /// decides which build rows have matches: nobody wants the rest.
    pub abandoned: Option<Box<J::Progress>>,
}

/// The probe inputs of all streams.
pub(crate) struct ProbeInputs<J: SharedProbe> {
    plan: Arc<dyn ExecutionPlan>,
    task: Arc<TaskContext>,
    state: Mutex<State<J>>,
}

struct State<J: SharedProbe> {
    inputs: Vec<Slot<J>>,
    /// Inputs that have not been read to the end.
    unread: usize,
    /// What remains of all inputs that have ended.
    ended: Vec<J::Ended>,
    /// What a stream has left undone that was given up while it put the build rows out.
    rest: Option<Rest<J>>,
    /// Why a stream has failed while it read an input.
    failed: Option<Arc<DataFusionError>>,
}

/// The work of a stream after the probe side has been read, and rows that it has made and not handed out.
pub(crate) struct Rest<J: SharedProbe> {
    pub work: J::Work,
    pub rows: Vec<RecordBatch>,
}

enum Slot<J: SharedProbe> {
    /// Nobody has asked for the stream of this number.
    Unopened,
    Waiting(ProbeInput<J>),
    /// Being read, or read.
    Taken,
}

/// What a stream is to do after it has ended an input.
pub(crate) enum Next<J: SharedProbe> {
    /// Go on with another input.
    Read(ProbeInput<J>),
    /// Put the build rows out; here is what remains of all inputs.
    Finish(Vec<J::Ended>),
    /// Go on where a stream was given up that put the build rows out.
    Resume(Rest<J>),
    /// Nothing: other streams still read.
    End,
}

impl<J: SharedProbe> ProbeInputs<J> {
    pub fn new(plan: Arc<dyn ExecutionPlan>, task: Arc<TaskContext>) -> Self {
        let partitions = plan.properties().output_partitioning().partition_count();
        let inputs = (0..partitions).map(|_| Slot::Unopened).collect();
        let state = State { inputs, unread: partitions, ended: Vec::new(), rest: None, failed: None };
        Self { plan, task, state: Mutex::new(state) }
    }

    /// Opens an input, unless another stream has taken it over.
    pub fn open(&self, partition: usize) -> Result<()> {
        let mut state = self.state.lock();
        if matches!(state.inputs[partition], Slot::Unopened) {
            let stream = self.plan.execute(partition, Arc::clone(&self.task))?;
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

    /// Ends an input and tells what to do next.
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

    /// Gives an input back that its stream has not read to the end.
    pub fn give_back(&self, input: ProbeInput<J>) {
        let mut state = self.state.lock();
        if let Some(slot) = state.inputs.iter_mut().find(|slot| matches!(slot, Slot::Taken)) {
            *slot = Slot::Waiting(input);
        }
    }

    /// Leaves the work of the last stream to whichever is polled next.
    pub fn hand_over(&self, rest: Rest<J>) {
        self.state.lock().rest = Some(rest);
    }

    /// Makes the other streams fail too, for the same reason: one has failed while it read an input.
    pub fn fail(&self, error: &Arc<DataFusionError>) {
        self.state.lock().failed.get_or_insert_with(|| Arc::clone(error));
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
                    let stream = self.plan.execute(partition, Arc::clone(&self.task))?;
                    return Ok(Next::Read(ProbeInput { stream, abandoned: None }));
                }
                Slot::Waiting(input) => return Ok(Next::Read(input)),
                Slot::Taken => {}
            }
        }
        Ok(Next::End)
    }
}

impl<J: SharedProbe> fmt::Debug for ProbeInputs<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeInputs").field("unread", &self.state.lock().unread).finish_non_exhaustive()
    }
}
