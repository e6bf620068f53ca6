//! Reads the probe side of a join before its build side, which has an index.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::SendableRecordBatchStream;
use overspill_join::memory::UnitMemory;

use super::keys::LookupExecution;
use crate::join_execution::input::OpenProbe;
use crate::join_execution::read_ahead::ReadAhead;

/// The probe side of a join whose build side has an index. It is read first, until it ends or has too many keys for lookups, and
/// what has been read is kept. Then the build side is looked up or scanned, and the probe side goes on where it was left.
pub(crate) struct KeysAhead {
    lookup: Arc<LookupExecution>,
    probe: Arc<ReadAhead>,
}

impl KeysAhead {
    /// Of `partitions` partitions that `open` opens.
    pub fn new(lookup: Arc<LookupExecution>, open: OpenProbe, schema: SchemaRef, partitions: usize) -> Self {
        Self { lookup, probe: Arc::new(ReadAhead::new(open, schema, partitions)) }
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
        let mut reading = self.probe.begin(memory)?;
        let mut keys = self.lookup.collect(memory.grant());
        while !keys.has_given_up() {
            let next = std::future::poll_fn(|context| reading.poll_next(context)).await;
            let Some((number, batch)) = next.transpose()? else { break };
            self.lookup.add(&mut keys, &batch)?;
            if !reading.keep(number, batch) {
                self.lookup.lacks_memory(&mut keys);
            }
        }
        self.lookup.decide(keys);
        self.probe.end(reading);
        Ok(())
    }

    /// Opens a partition, which [`Self::read`] must have read before the stream is first polled.
    pub fn open(&self, partition: usize) -> SendableRecordBatchStream {
        self.probe.open(partition)
    }
}
