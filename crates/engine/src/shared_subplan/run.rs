//! One run of the input.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, Shared};
use overspill_join::memory::compact;
use parking_lot::Mutex;

use super::store::{Kept, SpillFile, Store};

/// The rows of one run, which each reader reads once.
#[derive(Debug)]
pub(super) struct Run {
    partitions: Vec<Arc<Partition>>,
}

impl Run {
    /// A run for the readers that are still in plans.
    pub fn new(
        input: &Arc<dyn ExecutionPlan>,
        readers: &[bool],
        store: Arc<Store>,
        context: &Arc<TaskContext>,
    ) -> Self {
        let partition = |partition| {
            let source = Source { rows: Rows::Planned(Arc::clone(input), partition, Arc::clone(context)), file: None };
            let positions =
                readers.iter().map(|is_there| if *is_there { Position::Awaited } else { Position::Gone }).collect();
            let state =
                State { positions, first: 0, kept: VecDeque::new(), source: Some(source), pull: None, end: None };
            Arc::new(Partition { store: Arc::clone(&store), state: Mutex::new(state) })
        };
        Self { partitions: (0..input.output_partitioning().partition_count()).map(partition).collect() }
    }

    /// Whether a reader has yet to start a partition.
    pub fn awaits(&self, reader: usize, partition: usize) -> bool {
        let state = self.partitions[partition].state.lock();
        matches!(state.positions.get(reader), Some(Position::Awaited))
    }

    /// Whether some reader has started and not ended a partition.
    pub fn is_read(&self) -> bool {
        self.partitions.iter().any(|partition| {
            let state = partition.state.lock();
            state.positions.iter().any(|position| matches!(position, Position::At(_)))
        })
    }

    /// Whether no reader is awaited any more.
    pub fn is_started(&self) -> bool {
        self.partitions.iter().all(|partition| {
            let state = partition.state.lock();
            !state.positions.iter().any(|position| matches!(position, Position::Awaited))
        })
    }

    /// Starts a partition for a reader.
    pub fn open(&self, reader: usize, partition: usize) -> Arc<Partition> {
        let partition = &self.partitions[partition];
        partition.state.lock().positions[reader] = Position::At(0);
        Arc::clone(partition)
    }

    /// Awaits a reader no longer.
    pub fn leave(&self, reader: usize) {
        for partition in &self.partitions {
            let is_awaited = matches!(partition.state.lock().positions.get(reader), Some(Position::Awaited));
            if is_awaited {
                partition.leave(reader);
            }
        }
    }
}

/// One partition of the rows.
#[derive(Debug)]
pub(super) struct Partition {
    store: Arc<Store>,
    state: Mutex<State>,
}

struct State {
    /// Of each reader.
    positions: Vec<Position>,
    /// The number of the first batch that is kept.
    first: usize,
    /// Batches that some reader has yet to pass.
    kept: VecDeque<Kept>,
    /// Where further batches come from, unless one is being pulled.
    source: Option<Source>,
    pull: Option<Pull>,
    end: Option<End>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("positions", &self.positions)
            .field("first", &self.first)
            .field("kept", &self.kept.len())
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy)]
enum Position {
    /// Before the first batch, as it has not been started.
    Awaited,
    /// Before the batch of this number.
    At(usize),
    /// It needs no more batches.
    Gone,
}

/// The next batch of the input; `None` at the end. Each reader that waits for the batch polls this future, and any of them can
/// complete it. So a reader that is polled no more holds up no other.
type Pull = Shared<BoxFuture<'static, Option<RecordBatch>>>;

/// How the rows ended.
#[derive(Debug, Clone)]
enum End {
    Whole,
    Failed(Arc<DataFusionError>),
}

/// What a reader does next.
pub(super) enum Step {
    /// Returns this batch.
    Batch(RecordBatch),
    /// Returns the batch with this number of a spill file.
    Read(Arc<SpillFile>, usize),
    /// Waits for the next batch.
    Pull(Pull),
    End,
}

impl Partition {
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// # Errors
    /// The error of the input, after all batches before it.
    pub fn step(self: &Arc<Self>, reader: usize) -> Result<Step> {
        let mut state = self.state.lock();
        let Position::At(position) = state.positions[reader] else {
            return internal_err!("a reader of a shared subplan reads on after its end");
        };
        match state.kept.get(position - state.first) {
            Some(Kept::InMemory(batch, _)) => {
                let batch = batch.clone();
                state.pass(reader, position, &self.store);
                return Ok(Step::Batch(batch));
            }
            Some(Kept::OnDisk(file, number)) => return Ok(Step::Read(Arc::clone(file), *number)),
            None => {}
        }
        match &state.end {
            Some(End::Failed(error)) => return Err(DataFusionError::from(error)),
            Some(End::Whole) => return Ok(Step::End),
            None => {}
        }
        if state.pull.is_none()
            && let Some(source) = state.source.take()
        {
            let partition = Arc::downgrade(self);
            let pull = async move {
                let (source, batch) = source.next().await;
                partition.upgrade()?.receive(source, batch)
            };
            state.pull = Some(pull.boxed().shared());
        }
        match &state.pull {
            Some(pull) => Ok(Step::Pull(pull.clone())),
            None => internal_err!("a shared subplan has lost its input"),
        }
    }

    /// A reader has returned the batch of its position.
    pub fn pass(&self, reader: usize) {
        let mut state = self.state.lock();
        if let Position::At(position) = state.positions[reader] {
            state.pass(reader, position, &self.store);
        }
    }

    /// A reader needs no more batches.
    pub fn leave(&self, reader: usize) {
        let unneeded = {
            let mut state = self.state.lock();
            state.positions[reader] = Position::Gone;
            state.drop_passed(&self.store);
            let is_needed = state.positions.iter().any(|position| !matches!(position, Position::Gone));
            if is_needed { None } else { Some((state.source.take(), state.pull.take())) }
        };
        // Dropping a stream may take a while, and drops readers of other subplans.
        drop(unneeded);
    }

    /// Takes what the input has returned, and keeps a batch for the other readers.
    fn receive(&self, mut source: Source, batch: Option<Result<RecordBatch>>) -> Option<RecordBatch> {
        let received = match batch {
            Some(batch) => batch.and_then(|batch| self.keep(&mut source, batch)).map(Some),
            None => Ok(None),
        };
        let mut state = self.state.lock();
        state.pull = None;
        let (batch, kept) = match received {
            Ok(Some(received)) => received,
            Ok(None) => {
                state.end = Some(End::Whole);
                return None;
            }
            Err(error) => {
                state.end = Some(End::Failed(Arc::new(error)));
                return None;
            }
        };
        state.source = Some(source);
        match kept {
            Some(kept) => state.kept.push_back(kept),
            // The only reader is the one that polls this.
            None => state.first += 1,
        }
        Some(batch)
    }

    /// Keeps a batch, unless only one reader is left.
    fn keep(&self, source: &mut Source, batch: RecordBatch) -> Result<(RecordBatch, Option<Kept>)> {
        let readers = {
            let state = self.state.lock();
            state.positions.iter().filter(|position| !matches!(position, Position::Gone)).count()
        };
        if readers < 2 {
            return Ok((batch, None));
        }
        // An aggregate returns slices of its groups.
        let batch = compact(batch)?;
        let kept = self.store.keep(&batch, &mut source.file)?;
        Ok((batch, Some(kept)))
    }
}

impl State {
    fn pass(&mut self, reader: usize, position: usize, store: &Store) {
        self.positions[reader] = Position::At(position + 1);
        self.drop_passed(store);
    }

    /// Drops the batches that all readers have passed.
    fn drop_passed(&mut self, store: &Store) {
        let needed = self.positions.iter().filter_map(|position| match position {
            Position::Awaited => Some(0),
            Position::At(position) => Some(*position),
            Position::Gone => None,
        });
        let needed = needed.min().unwrap_or(usize::MAX);
        while self.first < needed
            && let Some(passed) = self.kept.pop_front()
        {
            store.forget(&passed);
            self.first += 1;
        }
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        for kept in &self.state.get_mut().kept {
            self.store.forget(kept);
        }
    }
}

/// Where batches come from.
struct Source {
    rows: Rows,
    /// The spill file that the last batch which went to disk is in.
    file: Option<Arc<SpillFile>>,
}

enum Rows {
    /// A partition of the input that has not been executed.
    Planned(Arc<dyn ExecutionPlan>, usize, Arc<TaskContext>),
    Running(SendableRecordBatchStream),
}

impl Source {
    /// The next batch with rows.
    async fn next(self) -> (Self, Option<Result<RecordBatch>>) {
        let Self { rows, file } = self;
        let mut stream = match rows {
            Rows::Running(stream) => stream,
            Rows::Planned(input, partition, context) => match input.execute(partition, Arc::clone(&context)) {
                Ok(stream) => stream,
                Err(error) => return (Self { rows: Rows::Planned(input, partition, context), file }, Some(Err(error))),
            },
        };
        loop {
            match stream.next().await {
                Some(Ok(batch)) if batch.num_rows() == 0 => {}
                batch => return (Self { rows: Rows::Running(stream), file }, batch),
            }
        }
    }
}
