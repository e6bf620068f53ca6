//! Reads a side of a join before it is joined, and keeps what has been read.

use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::{self, Fuse, Stream, iter, once};
use futures::{StreamExt, TryStreamExt};
use overspill_join::memory::{Grant, HeldMemory, UnitMemory};
use parking_lot::Mutex;

use super::input::OpenProbe;

/// The partitions of a side that may be read ahead. Each is then read from its first batch: those that were kept, and the rest.
pub(crate) struct ReadAhead {
    open: OpenProbe,
    schema: SchemaRef,
    partitions: Mutex<Vec<Slot>>,
}

/// Where a partition is.
enum Slot {
    Unopened,
    /// What was read ahead, if something was, and the rest.
    Open(Option<Kept>, Fuse<SendableRecordBatchStream>),
    /// Being read, or not to be read.
    Taken,
}

/// Batches that were read, each with its bytes, and the memory that pays for them.
pub(crate) struct Kept {
    batches: Vec<(RecordBatch, usize)>,
    memory: Grant,
}

impl Kept {
    pub fn new(batches: Vec<(RecordBatch, usize)>, memory: Grant) -> Self {
        Self { batches, memory }
    }

    /// The batches. Each gives back its memory when it is passed on.
    pub fn into_stream(self) -> impl Stream<Item = Result<RecordBatch>> + Send + 'static {
        let Self { batches, mut memory } = self;
        iter(batches).map(move |(batch, bytes)| {
            memory.shrink(bytes);
            Ok(batch)
        })
    }
}

/// A partition that is read ahead.
struct Partition {
    kept: Kept,
    /// The batches that have not been read.
    rest: Fuse<SendableRecordBatchStream>,
}

/// All partitions, while they are read ahead.
pub(crate) struct Reading {
    partitions: Vec<Partition>,
    /// The partition that is asked first, each in its turn: what is not taken of the others may have to be stored below.
    turn: usize,
    held: HeldMemory,
}

impl ReadAhead {
    /// Of `partitions` partitions that `open` opens.
    pub fn new(open: OpenProbe, schema: SchemaRef, partitions: usize) -> Self {
        Self { open, schema, partitions: Mutex::new((0..partitions).map(|_| Slot::Unopened).collect()) }
    }

    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Takes all partitions, and opens those that are not open yet. `memory` pays for what is kept.
    ///
    /// # Errors
    /// If one cannot be opened.
    pub fn begin(&self, memory: &Arc<UnitMemory>) -> Result<Reading> {
        // Locked meanwhile, so that no partition is opened twice.
        let mut partitions = self.partitions.lock();
        let opened = partitions.iter_mut().enumerate().map(|(number, slot)| {
            let rest = match std::mem::replace(slot, Slot::Taken) {
                Slot::Open(_, rest) => rest,
                Slot::Unopened | Slot::Taken => (self.open)(number)?.fuse(),
            };
            Ok(Partition { kept: Kept::new(vec![], memory.grant()), rest })
        });
        Ok(Reading { partitions: opened.collect::<Result<_>>()?, turn: 0, held: HeldMemory::default() })
    }

    /// Leaves what was read to the streams of the partitions.
    pub fn end(&self, reading: Reading) {
        let partitions = reading.partitions.into_iter();
        *self.partitions.lock() = partitions.map(|Partition { kept, rest }| Slot::Open(Some(kept), rest)).collect();
    }

    /// Opens a partition, unless it has been taken. If it is read ahead, that must have ended before the stream is first polled.
    ///
    /// Operators below may have work to do for other partitions and processes as soon as they are executed.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open_early(self: &Arc<Self>, partition: usize) -> Result<SendableRecordBatchStream> {
        let mut partitions = self.partitions.lock();
        if matches!(partitions[partition], Slot::Unopened) {
            partitions[partition] = Slot::Open(None, (self.open)(partition)?.fuse());
        }
        drop(partitions);
        Ok(self.open(partition))
    }

    /// Opens a partition when its stream is first polled. If it is read ahead, that must have ended before.
    pub fn open(self: &Arc<Self>, partition: usize) -> SendableRecordBatchStream {
        let this = Arc::clone(self);
        let batches = async move {
            let (kept, rest) = match this.take(partition) {
                Slot::Open(kept, rest) => (kept, rest),
                Slot::Unopened => return (this.open)(partition),
                Slot::Taken => return internal_err!("a side of a join that was read ahead is read again"),
            };
            let batches = stream::iter(kept).map(Kept::into_stream).flatten().chain(rest);
            Ok(Box::pin(RecordBatchStreamAdapter::new(this.schema(), batches)) as SendableRecordBatchStream)
        };
        Box::pin(RecordBatchStreamAdapter::new(self.schema(), once(batches).try_flatten()))
    }

    /// Drops a partition that will not be read.
    pub fn close(&self, partition: usize) {
        drop(self.take(partition));
    }

    fn take(&self, partition: usize) -> Slot {
        std::mem::replace(&mut self.partitions.lock()[partition], Slot::Taken)
    }
}

impl Reading {
    /// The next batch of any partition, and its number; `None` once all have ended.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(usize, RecordBatch)>>> {
        let (mut has_ended, count) = (true, self.partitions.len());
        self.turn += 1;
        for number in (self.turn..self.turn + count).map(|number| number % count) {
            match self.partitions[number].rest.poll_next_unpin(context) {
                Poll::Ready(Some(batch)) => return Poll::Ready(Some(batch.map(|batch| (number, batch)))),
                Poll::Ready(None) => {}
                Poll::Pending => has_ended = false,
            }
        }
        if has_ended { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Keeps a batch of a partition. Returns false if there is no memory for it. The batch is kept all the same, and not charged.
    pub fn keep(&mut self, number: usize, batch: RecordBatch) -> bool {
        let kept = &mut self.partitions[number].kept;
        let bytes = self.held.add(&batch);
        let has_memory = kept.memory.try_grow(bytes).is_ok();
        // The pool has refused memory for this batch, so it is not charged. A charge beyond the limit would make the pool refuse memory to other operators.
        kept.batches.push((batch, if has_memory { bytes } else { 0 }));
        has_memory
    }

    /// What was read of all partitions.
    pub fn into_kept(self) -> impl Iterator<Item = Kept> {
        self.partitions.into_iter().map(|partition| partition.kept)
    }
}
