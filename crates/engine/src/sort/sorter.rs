//! The algorithm: an external merge sort.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
use datafusion::execution::{SendableRecordBatchStream, SpillFile, TaskContext};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::sorts::sort::{SortExec, sort_batch};
use datafusion::physical_plan::sorts::streaming_merge::StreamingMergeBuilder;
use datafusion::physical_plan::spill::get_record_batch_memory_size;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{EmptyRecordBatchStream, ExecutionPlan, SpillManager};
use futures::StreamExt;
use overspill_join::memory::compact;

use super::memory::{FEWEST_MERGED, FILE_BYTES, Sizes, SortMemory, merged_bytes};
use crate::spill::explain_disk_full;

/// The number of batches of a run that a merge holds at most: one being read, one waiting, one being merged, and the previous
/// one with rows in the output.
const BATCHES_A_RUN: usize = 4;

/// The number of output batches held: the one being built, its compact copy, and the one downstream.
const OUTPUT_BATCHES: usize = 3;

/// The most runs that are merged at a time: each has an open file and a task that reads ahead.
const MOST_MERGED: usize = 64;

pub(super) struct Sorter {
    schema: SchemaRef,
    ordering: LexOrdering,
    /// The limit on output rows, if there is one.
    fetch: Option<usize>,
    /// Rows of an output batch.
    batch_rows: usize,
    sizes: Sizes,
    memory: SortMemory,
    /// `None` if the session has no temporary files.
    spills: Option<SpillManager>,
    disk: Arc<DiskManager>,
    /// Batches as received, too few to be a run.
    unsorted: Vec<RecordBatch>,
    unsorted_bytes: usize,
    /// Sorted batches.
    runs: Vec<RecordBatch>,
    files: Vec<SpilledRun>,
    /// Rows and bytes received, for the average row size.
    rows: usize,
    bytes: usize,
    metrics: BaselineMetrics,
}

/// A sorted run on disk.
struct SpilledRun {
    file: Arc<dyn SpillFile>,
    /// Memory of its largest batch in a merge.
    batch_bytes: usize,
}

impl SpilledRun {
    fn merged_bytes(&self) -> usize {
        BATCHES_A_RUN * self.batch_bytes + FILE_BYTES
    }
}

impl Sorter {
    pub fn new(planned: &SortExec, partition: usize, metrics: &ExecutionPlanMetricsSet, context: &TaskContext) -> Self {
        let runtime = context.runtime_env();
        let schema = planned.schema();
        let spill_metrics = SpillMetrics::new(metrics, partition);
        let spills = runtime.disk_manager.tmp_files_enabled().then(|| {
            SpillManager::new(Arc::clone(&runtime), spill_metrics, Arc::clone(&schema))
                .with_compression_type(context.session_config().spill_compression())
                .with_batch_read_buffer_capacity(1)
        });
        Self {
            ordering: planned.expr().clone(),
            fetch: planned.fetch(),
            batch_rows: context.session_config().batch_size(),
            sizes: Sizes::of(context.memory_pool()),
            memory: SortMemory::new(context.memory_pool(), partition),
            disk: Arc::clone(&runtime.disk_manager),
            unsorted: vec![],
            unsorted_bytes: 0,
            runs: vec![],
            files: vec![],
            rows: 0,
            bytes: 0,
            metrics: BaselineMetrics::new(metrics, partition),
            spills,
            schema,
        }
    }

    /// Adds a batch of the input. Spills the rows that are held if there is no memory for the batch.
    ///
    /// # Errors
    /// Without temporary files, the errors of the pool; errors of the disk; and errors of a pool that does not even have room
    /// for the working buffers.
    pub async fn insert(&mut self, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let batch = compact(batch)?;
        let bytes = get_record_batch_memory_size(&batch);
        let merged_bytes = merged_bytes(&self.ordering, &batch)?;
        self.rows += batch.num_rows();
        self.bytes += bytes;
        // A batch that gets no other memory is sorted and written within the working buffers.
        self.memory.secure_working_buffers(self.sizes, 2 * merged_bytes)?;
        let mut refused = self.memory.state.try_grow(merged_bytes).err();
        if refused.is_some() && !(self.unsorted.is_empty() && self.runs.is_empty()) {
            self.spill(refused.take()).await?;
            refused = self.memory.state.try_grow(merged_bytes).err();
        }
        // Large batches become runs of their own; otherwise the rows before them would have to be copied with them.
        if bytes >= self.sizes.run {
            self.sort_run()?;
        }
        self.unsorted.push(batch);
        self.unsorted_bytes += bytes;
        if refused.is_some() {
            return self.spill(refused).await;
        }
        let rows = || self.unsorted.iter().map(RecordBatch::num_rows).sum::<usize>();
        // With several keys, merging many small runs is faster than sorting a large one.
        if self.unsorted_bytes >= self.sizes.run || (self.ordering.len() > 1 && rows() >= self.batch_rows) {
            self.sort_run()?;
        }
        Ok(())
    }

    /// Returns the rows in order.
    ///
    /// # Errors
    /// Returns the errors of [`Self::insert`].
    pub async fn finish(mut self) -> Result<SendableRecordBatchStream> {
        if self.files.is_empty() {
            self.sort_run()?;
            let runs = std::mem::take(&mut self.runs);
            let sorted = self.merge_in_memory(runs, self.batch_rows, self.metrics.clone())?;
            self.memory.keep_working_buffers(OUTPUT_BATCHES * self.sizes.block);
            return Ok(self.keep_memory(sorted));
        }
        self.spill(None).await?;
        loop {
            // Merges the smallest runs first, and only as many as needed for the last merge to take the rest.
            self.files.sort_by_key(|run| run.file.size());
            let (most, working) = self.reserve_merge()?;
            let count = match self.files.len() - most {
                0 => most,
                left => most.min(left + 1).max(FEWEST_MERGED),
            };
            let runs: Vec<SpilledRun> = self.files.drain(..count).collect();
            if self.files.is_empty() {
                let sorted = self.merge_files(runs, self.metrics.clone())?;
                self.memory.keep_working_buffers(working);
                return Ok(self.keep_memory(sorted));
            }
            let merged = self.merge_files(runs, self.metrics.intermediate())?;
            self.write(merged).await?;
            self.memory.state.free();
        }
    }

    /// Sorts the rows received since the last run.
    fn sort_run(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.unsorted);
        self.unsorted_bytes = 0;
        let _timer = self.metrics.elapsed_compute().timer();
        let batch = match batches.as_slice() {
            [] => return Ok(()),
            [batch] => batch.clone(),
            batches => concat_batches(&self.schema, batches)?,
        };
        drop(batches);
        self.runs.push(sort_batch(&batch, &self.ordering, self.fetch)?);
        Ok(())
    }

    /// Moves all rows in memory to a file. `refused` is the reason.
    async fn spill(&mut self, refused: Option<DataFusionError>) -> Result<()> {
        if let (None, Some(error)) = (&self.spills, refused) {
            return Err(error.context("A sort cannot move rows to disk, as the session has no temporary files"));
        }
        self.sort_run()?;
        let runs = std::mem::take(&mut self.runs);
        if !runs.is_empty() {
            let merged = self.merge_in_memory(runs, self.block_rows(), self.metrics.intermediate())?;
            self.write(merged).await?;
        }
        self.memory.state.free();
        Ok(())
    }

    /// The number of rows that take as many bytes as a batch in a spilled run should.
    fn block_rows(&self) -> usize {
        (self.sizes.block / (self.bytes / self.rows.max(1)).max(1)).clamp(1, self.batch_rows)
    }

    /// Writes a run to a file.
    async fn write(&mut self, mut rows: SendableRecordBatchStream) -> Result<()> {
        let Some(spills) = &self.spills else { return internal_err!("a sort without temporary files spills") };
        let explain = |error| explain_disk_full(error, &self.disk);
        let mut file = spills.create_in_progress_file("spilling a sort").map_err(explain)?;
        let mut batch_bytes = 0;
        while let Some(batch) = rows.next().await.transpose()? {
            let batch = compact(batch)?;
            batch_bytes = batch_bytes.max(merged_bytes(&self.ordering, &batch)?);
            file.append_batch(&batch).map_err(explain)?;
        }
        if let Some(file) = file.finish().map_err(explain)? {
            self.files.push(SpilledRun { file, batch_bytes });
        }
        Ok(())
    }

    /// Reserves memory to merge the first files. Returns their number, and the part of the working buffers that the merge
    /// needs.
    fn reserve_merge(&self) -> Result<(usize, usize)> {
        let largest = self.files.iter().map(|run| run.batch_bytes).max().unwrap_or(0);
        let mut needed = OUTPUT_BATCHES * largest;
        let mut count = 0;
        for run in self.files.iter().take(MOST_MERGED) {
            if count < FEWEST_MERGED {
                needed += run.merged_bytes();
                self.memory.secure_working_buffers(self.sizes, needed)?;
            } else if self.memory.state.try_grow(run.merged_bytes()).is_err() {
                break;
            }
            count += 1;
        }
        Ok((count, needed))
    }

    fn merge_files(&self, runs: Vec<SpilledRun>, metrics: BaselineMetrics) -> Result<SendableRecordBatchStream> {
        let Some(spills) = &self.spills else { return internal_err!("a sort without temporary files has some") };
        let streams = runs.into_iter().map(|run| spills.read_spill_as_stream(run.file, None));
        self.merge(streams.collect::<Result<_>>()?, self.block_rows(), metrics)
    }

    fn merge_in_memory(
        &self,
        runs: Vec<RecordBatch>,
        batch_rows: usize,
        metrics: BaselineMetrics,
    ) -> Result<SendableRecordBatchStream> {
        let stream = |run| {
            let rows = futures::stream::once(async move { Ok(run) });
            // A merge requests the first batch of all runs at once.
            Box::pin(cooperative(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), Box::pin(rows)))) as _
        };
        self.merge(runs.into_iter().map(stream).collect(), batch_rows, metrics)
    }

    fn merge(
        &self,
        runs: Vec<SendableRecordBatchStream>,
        batch_rows: usize,
        metrics: BaselineMetrics,
    ) -> Result<SendableRecordBatchStream> {
        if runs.is_empty() {
            return Ok(Box::pin(EmptyRecordBatchStream::new(Arc::clone(&self.schema))));
        }
        // The sort has already reserved the memory of the merge.
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let merged = StreamingMergeBuilder::new()
            .with_streams(runs)
            .with_schema(Arc::clone(&self.schema))
            .with_expressions(&self.ordering)
            .with_metrics(metrics)
            .with_batch_size(batch_rows)
            .with_fetch(self.fetch)
            .with_reservation(MemoryConsumer::new("merge of a sort").register(&pool))
            .build()?;
        // Merging from memory to a file waits for nothing else.
        Ok(Box::pin(cooperative(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), merged))))
    }

    /// Holds the memory of the sort until its last row has been returned or the stream is dropped. Batches are made compact:
    /// otherwise each would keep all rows of the sort alive.
    fn keep_memory(self, sorted: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let memory = self.memory;
        let sorted = sorted.map(move |batch| {
            let _memory = &memory;
            Ok(compact(batch?)?)
        });
        Box::pin(RecordBatchStreamAdapter::new(self.schema, sorted))
    }
}
