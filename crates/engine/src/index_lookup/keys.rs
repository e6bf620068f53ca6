//! The keys of the other side, and whether to look them up.

use std::sync::{Arc, OnceLock};

use arrow::array::{Array, RecordBatch};
use datafusion::common::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::TryStreamExt;
use overspill_gpu_join::Gpu;
use overspill_index::OrderedWords;
use overspill_join::memory::Grant;
use tokio::sync::OnceCell;

use super::lookup::Lookup;
use super::on_gpu::found_on_gpu;
use super::side::{over, replaced};
use crate::config::IndexUse;
use crate::index_scan::{IndexMetrics, IndexRowsExec, LookupKeys, MemoryRows, ScannedRows, Wanted};
use crate::indexes::IndexedRows;
use crate::indexes::files::{FileRows, SelectedRows, Sought};

/// Nanoseconds of a thread to look a key up, to fetch a row and join it, and to scan a row and find no partner for it. Only their
/// ratios count.
const LOOKUP: usize = 100;
const FETCH: usize = 80;
const SCAN: usize = 9;

/// Number of keys that are looked up to estimate the rows of all.
const SAMPLE: usize = 1024;

/// Why keys are not looked up.
const TOO_MANY: &str = "more keys than are worth a lookup each, or than memory holds";

/// The lookups of one execution of a join.
#[derive(Debug)]
pub(crate) struct LookupExecution {
    /// The side of the join that is scanned if nothing is looked up.
    input: Arc<dyn ExecutionPlan>,
    lookup: Arc<Lookup>,
    /// The number of rows of the other side, if it is known before they are read.
    known: Option<usize>,
    used: Option<IndexUse>,
    /// The GPU that looks keys up, if the join has one.
    gpu: Option<Arc<Gpu>>,
    /// The keys to look up; `None` once it is known that the side is scanned.
    keys: OnceLock<Option<Arc<LookupKeys>>>,
    /// The rows of a table in memory to fetch.
    wanted: OnceCell<Wanted>,
    /// The side over certain rows of files; `None` if they are scanned.
    selected: OnceCell<Option<(Arc<dyn ExecutionPlan>, SelectedRows)>>,
    /// Executions that looked rows up.
    joins: Count,
    metrics: IndexMetrics,
}

/// The keys of the other side so far.
pub(crate) struct KeyCollector {
    /// `None` if there are too many.
    words: Option<Vec<u64>>,
    most: usize,
    memory: Grant,
}

impl KeyCollector {
    /// Whether there are too many keys.
    pub fn has_given_up(&self) -> bool {
        self.words.is_none()
    }
}

impl LookupExecution {
    pub(super) fn new(
        input: Arc<dyn ExecutionPlan>,
        lookup: Arc<Lookup>,
        known: Option<usize>,
        used: Option<IndexUse>,
        gpu: Option<Arc<Gpu>>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Self {
        Self {
            input,
            lookup,
            known,
            used,
            gpu,
            keys: OnceLock::new(),
            wanted: OnceCell::new(),
            selected: OnceCell::new(),
            joins: MetricBuilder::new(metrics).global_counter("index_joins"),
            metrics: IndexMetrics::new(metrics),
        }
    }

    /// Begins to collect keys, for which `memory` pays.
    pub fn collect(&self, memory: Grant) -> KeyCollector {
        let most = match (self.used, &self.lookup.scan.rows) {
            (Some(IndexUse::Always), _) => usize::MAX,
            (_, ScannedRows::Memory(memory)) => memory.rows.rows() * SCAN / LOOKUP,
            (_, ScannedRows::Files(files)) => files.most_keys(),
            (_, ScannedRows::Stale(_)) => 0,
        };
        let mut collector = KeyCollector { words: Some(Vec::new()), most, memory };
        if self.known.is_some_and(|known| known > most) {
            self.give_up(&mut collector, TOO_MANY);
        }
        collector
    }

    /// Adds the keys of a batch of the other side.
    ///
    /// # Errors
    /// If the key cannot be computed.
    pub fn add(&self, collector: &mut KeyCollector, batch: &RecordBatch) -> Result<()> {
        let KeyCollector { words: Some(words), most, memory } = collector else { return Ok(()) };
        let rows = batch.num_rows();
        // A growing vector is copied into one of twice its size.
        if words.len() + rows > *most || memory.try_grow(3 * rows * size_of::<u64>()).is_err() {
            self.give_up(collector, TOO_MANY);
            return Ok(());
        }
        let keys = self.lookup.key.evaluate(batch)?.into_array(rows)?;
        if self.lookup.refuses_nulls && keys.logical_null_count() > 0 {
            self.give_up(collector, "a key is null, so that NOT IN asks whether there are rows at all");
            return Ok(());
        }
        match OrderedWords::of(&keys) {
            Some(ordered) => ordered.for_each(|_, word| words.push(word)),
            None => self.give_up(collector, "keys of another type than the index"),
        }
        Ok(())
    }

    /// Gives up, as the rows of the other side cannot be kept.
    pub fn lacks_memory(&self, collector: &mut KeyCollector) {
        self.give_up(collector, "no memory for the rows of the other side");
    }

    fn give_up(&self, collector: &mut KeyCollector, reason: &'static str) {
        collector.words = None;
        collector.memory.shrink(collector.memory.bytes());
        self.metrics.refuse(reason);
    }

    /// Decides, once the other side has been read, or enough of it.
    pub fn decide(&self, collector: KeyCollector) {
        let keys = collector.words.and_then(|mut words| {
            words.sort_unstable();
            words.dedup();
            if let ScannedRows::Memory(memory) = &self.lookup.scan.rows {
                if self.used != Some(IndexUse::Always) && !is_worth_it(&memory.rows, &words) {
                    self.metrics.refuse("more matches than are worth fetching each");
                    return None;
                }
                self.joins.add(1);
            }
            Some(Arc::new(LookupKeys::new(words, collector.memory)))
        });
        // There is only one decision.
        let _ = self.keys.set(keys);
    }

    /// Opens a partition of the side. [`Self::decide`] must be called before the stream is first polled: only then the stream asks
    /// whether it scans or looks up, and executes the scan if it needs it. A scan of a large table copies the list of its batches.
    pub fn open(self: &Arc<Self>, partition: usize, task: &Arc<TaskContext>) -> SendableRecordBatchStream {
        let (this, task) = (Arc::clone(self), Arc::clone(task));
        let rows = async move {
            match this.keys.get().cloned().flatten() {
                Some(keys) => this.rows_of(keys, partition, task).await,
                None => this.input.execute(partition, task),
            }
        };
        let rows = futures::stream::once(rows).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(self.input.schema(), rows))
    }

    /// A partition of the side over the rows with these keys, or over all rows if these are not looked up.
    async fn rows_of(
        &self,
        keys: Arc<LookupKeys>,
        partition: usize,
        task: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        match &self.lookup.scan.rows {
            ScannedRows::Memory(memory) => {
                let wanted = self.wanted.get_or_init(|| self.wanted(memory, keys, &task)).await;
                self.in_memory(memory, wanted.clone(), &task)?.execute(partition, task)
            }
            ScannedRows::Files(files) => {
                let selected = self.selected.get_or_try_init(|| self.in_files(files, &keys, &task)).await?;
                match selected {
                    Some((plan, _)) => plan.execute(partition, task),
                    None => self.input.execute(partition, task),
                }
            }
            ScannedRows::Stale(_) => self.input.execute(partition, task),
        }
    }

    /// The rows of a table in memory with these keys. If a GPU has looked the keys up, these are the numbers of the rows.
    async fn wanted(&self, memory: &MemoryRows, keys: Arc<LookupKeys>, task: &TaskContext) -> Wanted {
        let always = self.used == Some(IndexUse::Always);
        let found = match &self.gpu {
            Some(gpu) => found_on_gpu(gpu, &memory.rows, &keys, always, task).await,
            None => None,
        };
        match found {
            Some(Ok(found)) => {
                self.metrics.lookups.add(keys.words.len());
                self.metrics.gpu_lookups.add(keys.words.len());
                return Wanted::Rows(Arc::new(found));
            }
            Some(Err(problem)) => self.metrics.count_problem(&problem),
            None => {}
        }
        Wanted::Keys(keys)
    }

    /// The side over these rows of a table in memory.
    fn in_memory(
        &self,
        memory: &Arc<MemoryRows>,
        wanted: Wanted,
        task: &TaskContext,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let rows = |streams| -> Arc<dyn ExecutionPlan> {
            Arc::new(IndexRowsExec::new(Arc::clone(memory), wanted, streams, self.metrics.clone()))
        };
        let partitions = self.input.output_partitioning().partition_count();
        if partitions == 1 {
            // One stream takes all rows, as for a build side. Several streams look them up for it.
            let streams = task.session_config().target_partitions();
            return Ok(Arc::new(CoalescePartitionsExec::new(over(&self.input, rows(streams))?)));
        }
        over(&self.input, rows(partitions))
    }

    /// The side over the rows of files with these keys; `None` if the files are scanned.
    async fn in_files(
        &self,
        files: &FileRows,
        keys: &LookupKeys,
        task: &TaskContext,
    ) -> Result<Option<(Arc<dyn ExecutionPlan>, SelectedRows)>> {
        self.metrics.lookups.add(keys.words.len());
        let sought = Sought::Keys(Arc::clone(&keys.words));
        match files.select(sought, self.used == Some(IndexUse::Always), None, task).await? {
            Ok(selected) => {
                self.joins.add(1);
                self.metrics.selected(&selected);
                // The selection has the partitions of the scan, so that nothing above it changes.
                Ok(Some((replaced(&self.input, Arc::clone(&selected.plan))?, selected)))
            }
            Err(why) => {
                self.metrics.refuse(why);
                Ok(None)
            }
        }
    }
}

/// Whether looking these keys up, and fetching their rows, takes less time than a scan.
fn is_worth_it(rows: &IndexedRows, words: &[u64]) -> bool {
    let step = words.len().div_ceil(SAMPLE).max(1);
    let sample: Vec<u64> = words.iter().copied().step_by(step).collect();
    let (mut places, mut found) = (Vec::new(), 0);
    for run in rows.runs() {
        run.index().look_up(&sample, &mut places);
        found += places.iter().map(ExactSizeIterator::len).sum::<usize>();
    }
    let expected = found.saturating_mul(step);
    let lookups = words.len() * rows.runs().len();
    lookups * LOOKUP + expected.saturating_mul(FETCH) < rows.rows() * SCAN
}
