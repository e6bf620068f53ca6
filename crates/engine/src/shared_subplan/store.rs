//! Where batches are kept until all readers have passed them.

use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, Gauge, MetricBuilder, MetricCategory, SpillMetrics};
use datafusion::physical_plan::spill::get_record_batch_memory_size;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use parking_lot::Mutex;

use crate::config::OverspillConfig;
use crate::join_execution::disk::{BatchFiles, DiskFile, FileWriter};
use crate::join_execution::narrow_dictionaries::NarrowDictionaries;
use crate::size::Size;
use crate::spill::explain_disk_full;

/// The part of the free memory that batches may take. They can move to disk as they arrive but not later, and joins and aggregates that
/// need memory later cannot wait for readers.
const SHARE: usize = 4;

/// The memory and the spill files of one run.
pub(super) struct Store {
    /// The name of the consumer.
    name: String,
    pool: Arc<dyn MemoryPool>,
    memory: OnceLock<MemoryReservation>,
    files: BatchFiles,
    dictionaries: Arc<NarrowDictionaries>,
    disk: Arc<DiskManager>,
    peak: Gauge,
}

/// A batch that is kept.
pub(super) enum Kept {
    /// With its bytes.
    InMemory(RecordBatch, usize),
    /// The batch of this number in a file.
    OnDisk(Arc<SpillFile>, usize),
}

/// A file to which batches are appended until a reader wants to read it.
pub(super) struct SpillFile(Mutex<Writing>);

struct Writing {
    /// `None` once it is complete, or could not be completed.
    open: Option<FileWriter>,
    complete: Option<DiskFile>,
    batches: usize,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("name", &self.name).field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Store {
    pub fn new(id: usize, schema: &SchemaRef, metrics: &ExecutionPlanMetricsSet, context: &TaskContext) -> Self {
        let options = context.session_config().options();
        let config = options.extensions.get::<OverspillConfig>().cloned().unwrap_or_default();
        let spill = SpillMetrics::new(metrics, 0);
        Self {
            name: format!("SharedSubplan[{id}]"),
            pool: Arc::clone(context.memory_pool()),
            memory: OnceLock::new(),
            files: BatchFiles::new(schema, &spill, &config, context, "spilling a shared subplan"),
            dictionaries: Arc::new(NarrowDictionaries::new(schema)),
            disk: Arc::clone(&context.runtime_env().disk_manager),
            peak: MetricBuilder::new(metrics).with_category(MetricCategory::Bytes).gauge("peak_mem_used", 0),
        }
    }

    /// Keeps a batch in memory if there is some, and else appends it to `file`, or to another one that it leaves there.
    ///
    /// # Errors
    /// Those of the disk, and of the pool if the session has no temporary files.
    pub fn keep(&self, batch: &RecordBatch, file: &mut Option<Arc<SpillFile>>) -> Result<Kept> {
        let bytes = get_record_batch_memory_size(batch);
        match self.try_hold(bytes) {
            Ok(()) => Ok(Kept::InMemory(batch.clone(), bytes)),
            Err(refused) if !self.disk.tmp_files_enabled() => Err(refused.context(
                "Rows of a part of the query that is read several times do not fit memory, and the session has no temporary files. \
                 Raise the memory limit, or SET overspill.shared_subplans = false",
            )),
            Err(_) => self.append(batch, file).map_err(|error| explain_disk_full(error, &self.disk)),
        }
    }

    /// Gives back the memory of a batch.
    pub fn forget(&self, kept: &Kept) {
        if let (Kept::InMemory(_, bytes), Some(memory)) = (kept, self.memory.get()) {
            memory.shrink(*bytes);
        }
    }

    /// Reads a file from its first batch. Nothing is appended to it afterwards.
    pub fn read(&self, file: &SpillFile) -> Result<SendableRecordBatchStream> {
        let complete = self.complete(file).map_err(|error| explain_disk_full(error, &self.disk))?;
        let batches = self.files.read(complete);
        let (schema, dictionaries) = (batches.schema(), Arc::clone(&self.dictionaries));
        let batches = batches.map(move |batch| Ok(dictionaries.restore(batch?)?));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }

    fn try_hold(&self, bytes: usize) -> Result<()> {
        let memory = self
            .memory
            .get_or_init(|| MemoryConsumer::new(self.name.clone()).with_can_spill(true).register(&self.pool));
        let held = memory.size().saturating_add(bytes);
        if let MemoryLimit::Finite(limit) = self.pool.memory_limit() {
            let free = limit.saturating_sub(self.pool.reserved()).saturating_sub(bytes);
            if held > free / SHARE {
                return Err(DataFusionError::ResourcesExhausted(format!(
                    "{} may not take {} more: it holds {}, and of the memory limit of {} only {} are left for other operators. Raise \
                     the limit with --memory-limit or datafusion.runtime.memory_limit",
                    self.name,
                    Size(bytes),
                    Size(memory.size()),
                    Size(limit),
                    Size(free),
                )));
            }
        }
        memory.try_grow(bytes)?;
        self.peak.set_max(memory.size());
        Ok(())
    }

    fn append(&self, batch: &RecordBatch, last: &mut Option<Arc<SpillFile>>) -> Result<Kept> {
        self.dictionaries.note(batch);
        if let Some(file) = last {
            let mut writing = file.0.lock();
            let Writing { open, batches, .. } = &mut *writing;
            if let Some(open) = open {
                self.files.append(open, batch)?;
                *batches += 1;
                return Ok(Kept::OnDisk(Arc::clone(file), *batches - 1));
            }
        }
        let mut open = self.files.create()?;
        self.files.append(&mut open, batch)?;
        let file = Arc::new(SpillFile(Mutex::new(Writing { open: Some(open), complete: None, batches: 1 })));
        *last = Some(Arc::clone(&file));
        Ok(Kept::OnDisk(file, 0))
    }

    fn complete(&self, file: &SpillFile) -> Result<DiskFile> {
        let mut writing = file.0.lock();
        if let Some(open) = writing.open.take() {
            let (complete, _) = self.files.finish(open)?;
            writing.complete = Some(complete);
        }
        writing.complete.clone().ok_or_else(|| {
            exec_datafusion_err!(
                "A spill file of a part of the query that is read several times could not be completed"
            )
        })
    }
}
