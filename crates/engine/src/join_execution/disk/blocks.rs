//! Spill files of compressed blocks, one after the other.

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::{SendableRecordBatchStream, SpillFile, SpillWriter};
use datafusion::physical_plan::common::spawn_buffered;
use datafusion::physical_plan::metrics::SpillMetrics;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use overspill_codec::{BlockReader, BlockWriter};
use parking_lot::Mutex;

/// Batches that wait for the consumer of a file that is read: as many as in DataFusion's files.
const READ_AHEAD: usize = 2;

/// Writes and reads files of batches with one schema.
#[derive(Debug)]
pub(super) struct BlockFiles {
    disk: Arc<DiskManager>,
    schema: SchemaRef,
    /// Those of threads that do not compress now: they keep some 100 KiB, and know how the last batches were compressed.
    idle: Mutex<Vec<BlockWriter>>,
    metrics: SpillMetrics,
}

/// A file that is being written; dropping it deletes the file.
pub(super) struct UnfinishedBlocks {
    pub file: Arc<dyn SpillFile>,
    writer: Box<dyn SpillWriter>,
    batches: usize,
}

/// A complete file, which is deleted with its last clone.
#[derive(Clone)]
pub(super) struct BlockFile {
    pub file: Arc<dyn SpillFile>,
    batches: usize,
}

impl BlockFiles {
    pub fn new(schema: &SchemaRef, disk: &Arc<DiskManager>, metrics: &SpillMetrics) -> Self {
        let (disk, schema) = (Arc::clone(disk), Arc::clone(schema));
        Self { disk, schema, idle: Mutex::default(), metrics: metrics.clone() }
    }

    pub fn create(&self, request: &str) -> Result<UnfinishedBlocks> {
        let file = self.disk.create_tmp_file(request)?;
        let writer = file.open_writer()?;
        self.metrics.spill_file_count.add(1);
        Ok(UnfinishedBlocks { file, writer, batches: 0 })
    }

    /// Compresses a batch and writes the block. Returns the time that compressing took.
    pub fn append(&self, file: &mut UnfinishedBlocks, batch: &RecordBatch) -> Result<Duration> {
        let start = Instant::now();
        let idle = self.idle.lock().pop();
        let mut blocks = idle.unwrap_or_default();
        let block = blocks.write(batch).map_err(|error| {
            exec_datafusion_err!("A batch cannot be spilled: {error}. SET overspill.spill_compression = off")
        })?;
        let compressing = start.elapsed();
        file.writer.write_all(block)?;
        file.batches += 1;
        self.metrics.spilled_rows.add(batch.num_rows());
        self.metrics.spilled_bytes.add(block.len());
        self.idle.lock().push(blocks);
        Ok(compressing)
    }

    /// Reads a file back, ahead of the consumer by a few batches.
    pub fn read(&self, file: BlockFile) -> Result<SendableRecordBatchStream> {
        let reading = Reading {
            chunks: file.file.read_stream()?,
            bytes: vec![],
            begin: 0,
            blocks: BlockReader::new(Arc::clone(&self.schema)),
            batches: 0,
            file,
        };
        let batches = stream::try_unfold(reading, async |mut reading| {
            let batch = reading.next().await?;
            Ok(batch.map(|batch| (batch, reading)))
        });
        let batches = RecordBatchStreamAdapter::new(Arc::clone(&self.schema), Box::pin(batches));
        Ok(spawn_buffered(Box::pin(batches), READ_AHEAD))
    }
}

impl UnfinishedBlocks {
    /// Completes the file, if it has batches.
    pub fn finish(mut self) -> Result<Option<BlockFile>> {
        self.writer.flush()?;
        self.writer.finish()?;
        Ok((self.batches > 0).then_some(BlockFile { file: self.file, batches: self.batches }))
    }
}

/// A file that is read.
struct Reading {
    chunks: BoxStream<'static, Result<Bytes>>,
    /// What was read of the file, from the block at `begin` on.
    bytes: Vec<u8>,
    begin: usize,
    blocks: BlockReader,
    /// Read so far.
    batches: usize,
    file: BlockFile,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let length = loop {
            let bytes = &self.bytes[self.begin..];
            let length = if bytes.is_empty() { None } else { BlockReader::length(bytes).map_err(damaged)? };
            match length {
                Some(length) if length <= bytes.len() => break length,
                _ => {}
            }
            let Some(chunk) = self.chunks.next().await.transpose()? else {
                let is_whole = self.batches == self.file.batches && bytes.is_empty();
                return if is_whole { Ok(None) } else { Err(damaged("its end is missing")) };
            };
            self.bytes.drain(..self.begin);
            self.begin = 0;
            self.bytes.extend_from_slice(&chunk);
        };
        let batch = self.blocks.read(&self.bytes[self.begin..][..length]).map_err(damaged)?;
        self.begin += length;
        self.batches += 1;
        Ok(Some(batch))
    }
}

fn damaged(error: impl Display) -> DataFusionError {
    exec_datafusion_err!(
        "A spill file has changed since it was written: {error}. Check the disk of the temporary directory, or choose another with \
         --temp-dir"
    )
}
