//! Reads the probe side of a join before its build side.

use std::sync::Arc;
use std::task::Poll;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::{Fuse, iter, once};
use futures::{StreamExt, TryStreamExt};
use overspill_join::memory::{Grant, HeldMemory, UnitMemory};
use parking_lot::Mutex;

use super::keys::LookupExecution;
use crate::join_execution::input::OpenProbe;

/// The probe side of a join whose build side has an index. It is read first, until it ends or has too many keys for lookups, and
/// what has been read is kept. Then the build side is looked up or scanned, and the probe side goes on where it was left.
pub(crate) struct ReadAhead {
    lookup: Arc<LookupExecution>,
    open: OpenProbe,
    schema: SchemaRef,
    partitions: Mutex<Vec<Option<Partition>>>,
}

/// A partition of the probe side.
struct Partition {
    /// The batches that have been read.
    kept: Vec<RecordBatch>,
    /// The batches that have not.
    rest: Fuse<SendableRecordBatchStream>,
    memory: Grant,
}

impl ReadAhead {
    /// Of `partitions` partitions that `open` opens.
    pub fn new(lookup: Arc<LookupExecution>, open: OpenProbe, schema: SchemaRef, partitions: usize) -> Self {
        let partitions = Mutex::new((0..partitions).map(|_| None).collect());
        Self { lookup, open, schema, partitions }
    }

    /// The lookups in the build side.
    pub fn lookup(&self) -> &Arc<LookupExecution> {
        &self.lookup
    }

    /// Reads all partitions at the same time, and decides whether the build side is looked up. `memory` pays for what is kept.
    ///
    /// # Errors
    /// Those of the probe side.
    pub async fn read(&self, memory: &Arc<UnitMemory>) -> Result<()> {
        let count = self.partitions.lock().len();
        let opened = (0..count).map(|partition| {
            Ok(Partition { kept: Vec::new(), rest: (self.open)(partition)?.fuse(), memory: memory.grant() })
        });
        let mut partitions = opened.collect::<Result<Vec<_>>>()?;
        let mut keys = self.lookup.collect(memory.grant());
        let mut held = HeldMemory::default();
        while !keys.has_given_up() {
            let Some((number, batch)) = next_of(&mut partitions).await else { break };
            let batch = batch?;
            self.lookup.add(&mut keys, &batch)?;
            let partition = &mut partitions[number];
            let bytes = held.add(&batch);
            if partition.memory.try_grow(bytes).is_err() {
                partition.memory.grow(bytes);
                self.lookup.lacks_memory(&mut keys);
            }
            partition.kept.push(batch);
        }
        self.lookup.decide(keys);
        *self.partitions.lock() = partitions.into_iter().map(Some).collect();
        Ok(())
    }

    /// Opens a partition, which [`Self::read`] must have read before the stream is first polled.
    pub fn open(self: &Arc<Self>, partition: usize) -> SendableRecordBatchStream {
        let this = Arc::clone(self);
        let batches = async move {
            let taken = this.partitions.lock().get_mut(partition).and_then(Option::take);
            let Some(Partition { kept, rest, memory }) = taken else { return (this.open)(partition) };
            let kept = iter(kept).map(move |batch| {
                // Held until the last batch has been passed on.
                let _paid = &memory;
                Ok(batch)
            });
            Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&this.schema), kept.chain(rest)))
                as SendableRecordBatchStream)
        };
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), once(batches).try_flatten()))
    }
}

/// The next batch of any partition, and its number; `None` once all have ended.
async fn next_of(partitions: &mut [Partition]) -> Option<(usize, Result<RecordBatch>)> {
    std::future::poll_fn(|context| {
        let mut has_ended = true;
        for (number, partition) in partitions.iter_mut().enumerate() {
            match partition.rest.poll_next_unpin(context) {
                Poll::Ready(Some(batch)) => return Poll::Ready(Some((number, batch))),
                Poll::Ready(None) => {}
                Poll::Pending => has_ended = false,
            }
        }
        if has_ended { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}
