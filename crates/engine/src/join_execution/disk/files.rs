//! Spill files of batches with one schema.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, SpillFile, TaskContext};
use datafusion::physical_plan::SpillManager;
use datafusion::physical_plan::metrics::SpillMetrics;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{TryStreamExt, stream};
use overspill_join::memory::row_bytes;

use super::blocks::{BlockFile, BlockFiles, UnfinishedBlocks};
use super::format::{Format, FormatChoice, Written};
use crate::config::OverspillConfig;

/// Writes and reads the files.
#[derive(Debug)]
pub(crate) struct BatchFiles {
    schema: SchemaRef,
    batches: SpillManager,
    blocks: Arc<BlockFiles>,
    choice: FormatChoice,
    /// What they are for, in errors.
    purpose: &'static str,
}

/// A complete file of batches, which is deleted with its last clone.
#[derive(Clone)]
pub(crate) struct DiskFile(Arc<[Part]>);

/// Batches that were written in one format: a file of the operating system.
enum Part {
    Batches(Arc<dyn SpillFile>),
    Blocks(BlockFile),
}

impl DiskFile {
    /// In bytes.
    pub fn size(&self) -> u64 {
        size_of_parts(&self.0)
    }
}

fn size_of_parts(parts: &[Part]) -> u64 {
    let files = parts.iter().map(|part| match part {
        Part::Batches(file) => file,
        Part::Blocks(blocks) => &blocks.file,
    });
    files.filter_map(|file| file.size()).sum()
}

/// A file that is being written; dropping it deletes the file.
pub(crate) struct FileWriter {
    complete: Vec<Part>,
    open: OpenPart,
}

enum OpenPart {
    Batches(Arc<dyn SpillFile>, Box<Append>),
    Blocks(UnfinishedBlocks),
}

/// Appends a batch, or, without one, completes the file, if it has batches.
///
/// A closure, because the type of DataFusion's unfinished spill files has no public name.
type Append = dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send;

impl FileWriter {
    /// In bytes.
    fn size(&self) -> u64 {
        size_of_parts(&self.complete) + self.open.size()
    }
}

impl OpenPart {
    fn size(&self) -> u64 {
        let file = match self {
            Self::Batches(file, _) => file,
            Self::Blocks(blocks) => &blocks.file,
        };
        file.size().unwrap_or(0)
    }

    fn format(&self) -> Format {
        match self {
            Self::Batches(..) => Format::Batches,
            Self::Blocks(_) => Format::Blocks,
        }
    }

    fn complete(self) -> Result<Option<Part>> {
        match self {
            Self::Batches(_, mut append) => Ok(append(None)?.map(Part::Batches)),
            Self::Blocks(blocks) => Ok(blocks.finish()?.map(Part::Blocks)),
        }
    }
}

impl BatchFiles {
    /// Files of batches with this schema.
    pub fn new(
        schema: &SchemaRef,
        metrics: &SpillMetrics,
        config: &OverspillConfig,
        context: &TaskContext,
        purpose: &'static str,
    ) -> Self {
        let runtime = context.runtime_env();
        let batches = SpillManager::new(Arc::clone(&runtime), metrics.clone(), Arc::clone(schema));
        Self {
            schema: Arc::clone(schema),
            batches: batches.with_compression_type(context.session_config().spill_compression()),
            blocks: Arc::new(BlockFiles::new(schema, &runtime.disk_manager, metrics)),
            choice: FormatChoice::new(config.spill_compression),
            purpose,
        }
    }

    /// Starts a file.
    pub fn create(&self) -> Result<FileWriter> {
        Ok(FileWriter { complete: vec![], open: self.open(self.choice.of_new_file())? })
    }

    fn open(&self, format: Format) -> Result<OpenPart> {
        if format == Format::Blocks {
            return Ok(OpenPart::Blocks(self.blocks.create(self.purpose)?));
        }
        let mut unfinished = self.batches.create_in_progress_file(self.purpose)?;
        let file = unfinished.file().cloned();
        let file = file.ok_or_else(|| internal_datafusion_err!("a spill file is complete before its first batch"))?;
        let append = move |batch: Option<&RecordBatch>| match batch {
            Some(batch) => unfinished.append_batch(batch).map(|_| None),
            None => unfinished.finish(),
        };
        Ok(OpenPart::Batches(file, Box::new(append)))
    }

    /// Appends a batch. Returns the bytes by which the file grew.
    pub fn append(&self, file: &mut FileWriter, batch: &RecordBatch) -> Result<u64> {
        let before = file.size();
        let format = self.choice.next(file.open.format());
        if format != file.open.format() {
            let part = std::mem::replace(&mut file.open, self.open(format)?);
            file.complete.extend(part.complete()?);
        }
        let (start, size) = (Instant::now(), file.open.size());
        let compressing = match &mut file.open {
            OpenPart::Batches(_, append) => append(Some(batch)).map(|_| Duration::ZERO)?,
            OpenPart::Blocks(blocks) => self.blocks.append(blocks, batch)?,
        };
        let (writing, file_bytes) = (start.elapsed() - compressing, file.open.size() - size);
        let bytes = row_bytes(batch) * batch.num_rows();
        self.choice.note(Written { format, bytes, file_bytes, compressing, writing });
        Ok(file.size() - before)
    }

    /// Completes a file. Returns the bytes by which it grew as well.
    ///
    /// # Errors
    /// If it has no batches.
    pub fn finish(&self, file: FileWriter) -> Result<(DiskFile, u64)> {
        let before = file.size();
        let FileWriter { complete: mut parts, open } = file;
        parts.extend(open.complete()?);
        if parts.is_empty() {
            return Err(internal_datafusion_err!("a spill file was finished without a batch"));
        }
        let file = DiskFile(parts.into());
        let bytes = file.size().saturating_sub(before);
        Ok((file, bytes))
    }

    /// Reads a file back, ahead of the consumer by a few batches.
    pub fn read(&self, file: DiskFile) -> SendableRecordBatchStream {
        let (manager, blocks) = (self.batches.clone(), Arc::clone(&self.blocks));
        let parts = (0..file.0.len()).map(move |part| match &file.0[part] {
            Part::Batches(file) => manager.read_spill_as_stream(Arc::clone(file), None),
            Part::Blocks(file) => blocks.read(file.clone()),
        });
        let batches = stream::iter(parts).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches))
    }
}
