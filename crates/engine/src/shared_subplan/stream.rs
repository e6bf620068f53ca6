//! What one reader returns of one partition.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::metrics::{BaselineMetrics, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use super::run::{Partition, Step};
use super::store::SpillFile;

/// Returns all rows of a partition. Dropping it leaves the others their rows.
pub(super) struct ReaderStream {
    partition: Arc<Partition>,
    /// The number of the reader.
    reader: usize,
    /// The spill file that is being read.
    reading: Option<Reading>,
    metrics: BaselineMetrics,
}

struct Reading {
    file: Arc<SpillFile>,
    batches: SendableRecordBatchStream,
    /// The number of the batch that comes next.
    next: usize,
}

impl ReaderStream {
    pub fn new(partition: Arc<Partition>, reader: usize, metrics: BaselineMetrics) -> Self {
        Self { partition, reader, reading: None, metrics }
    }

    pub fn into_stream(self, schema: SchemaRef) -> SendableRecordBatchStream {
        let batches = futures::stream::try_unfold(self, async |mut stream| {
            let batch = stream.next().await?;
            Ok(batch.map(|batch| (batch, stream)))
        });
        Box::pin(cooperative(RecordBatchStreamAdapter::new(schema, Box::pin(batches))))
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let batch = match self.partition.step(self.reader)? {
                Step::Batch(batch) => batch,
                Step::Read(file, number) => {
                    let batch = self.read(file, number).await?;
                    self.partition.pass(self.reader);
                    batch
                }
                Step::Pull(pull) => {
                    // Without a batch, the next step says how the rows have ended.
                    let Some(batch) = pull.await else { continue };
                    self.partition.pass(self.reader);
                    batch
                }
                Step::End => return Ok(None),
            };
            return Ok(Some(batch.record_output(&self.metrics)));
        }
    }

    /// Reads the batch of this number of a file. Those before it were returned when they came from the input.
    async fn read(&mut self, file: Arc<SpillFile>, number: usize) -> Result<RecordBatch> {
        let mut reading = match self.reading.take().filter(|reading| Arc::ptr_eq(&reading.file, &file)) {
            Some(reading) => reading,
            None => Reading { batches: self.partition.store().read(&file)?, file, next: 0 },
        };
        loop {
            let batch = reading.batches.next().await.transpose()?;
            let batch = batch.ok_or_else(|| {
                exec_datafusion_err!(
                    "A spill file has changed since it was written: its end is missing. Check the disk of the temporary directory, or \
                     choose another with --temp-dir"
                )
            })?;
            reading.next += 1;
            if reading.next > number {
                self.reading = Some(reading);
                return Ok(batch);
            }
        }
    }
}

impl Drop for ReaderStream {
    fn drop(&mut self) {
        self.partition.leave(self.reader);
    }
}
