//! Spill files: Arrow IPC, written and accounted by DataFusion's spill and disk managers.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::execution::{DiskManager, SendableRecordBatchStream, SpillFile, TaskContext};
use datafusion::physical_plan::SpillManager;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricCategory, SpillMetrics};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use overspill_join::JoinError;
use overspill_join::spec::Side;
use overspill_join::spill::SpillStore;

use super::narrow_dictionaries::NarrowDictionaries;
use super::timeline::JoinTimeline;
use crate::spill::explain_disk_full;

/// The metrics of the files of one execution of a join.
#[derive(Debug, Clone)]
pub(crate) struct DiskMetrics {
    /// Files and their bytes and rows.
    pub spill: SpillMetrics,
    /// Rows read back from files. Rows that are joined in passes count once per pass.
    pub read_rows: Count,
    /// Bytes of the files that were read back.
    pub read_bytes: Count,
}

impl DiskMetrics {
    pub fn new(metrics: &ExecutionPlanMetricsSet) -> Self {
        let bytes = MetricBuilder::new(metrics).with_category(MetricCategory::Bytes);
        Self {
            spill: SpillMetrics::new(metrics, 0),
            read_rows: MetricBuilder::new(metrics).global_counter("spill_read_rows"),
            read_bytes: bytes.global_counter("spill_read_bytes"),
        }
    }
}

/// The spill files of one execution of a join.
#[derive(Debug)]
pub(crate) struct DiskStore {
    disk: Arc<DiskManager>,
    build: SpilledSide,
    probe: SpilledSide,
    metrics: DiskMetrics,
    timeline: Arc<JoinTimeline>,
}

/// Properties that the files of one side share.
#[derive(Debug)]
struct SpilledSide {
    manager: SpillManager,
    dictionaries: Arc<NarrowDictionaries>,
}

impl DiskStore {
    pub fn new(
        build: &SchemaRef,
        probe: &SchemaRef,
        metrics: &DiskMetrics,
        context: &TaskContext,
        timeline: Arc<JoinTimeline>,
    ) -> Self {
        let side = |schema: &SchemaRef| {
            let manager = SpillManager::new(context.runtime_env(), metrics.spill.clone(), Arc::clone(schema))
                .with_compression_type(context.session_config().spill_compression());
            SpilledSide { manager, dictionaries: Arc::new(NarrowDictionaries::new(schema)) }
        };
        let disk = Arc::clone(&context.runtime_env().disk_manager);
        Self { disk, build: side(build), probe: side(probe), metrics: metrics.clone(), timeline }
    }

    /// Reads a file back, ahead of the consumer by a few batches.
    pub fn read(&self, side: Side, file: Arc<dyn SpillFile>) -> Result<SendableRecordBatchStream> {
        let SpilledSide { manager, dictionaries } = self.side(side);
        let dictionaries = Arc::clone(dictionaries);
        let rows = self.metrics.read_rows.clone();
        let bytes = file.size().unwrap_or(0);
        self.metrics.read_bytes.add(bytes as usize);
        let reading = self.timeline.reading(bytes);
        let batches = manager.read_spill_as_stream(file, None)?;
        let schema = batches.schema();
        let batches = batches.map(move |batch| {
            let _reading = &reading;
            let batch = batch?;
            rows.add(batch.num_rows());
            Ok(dictionaries.restore(batch)?)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches)))
    }

    fn explain(&self, error: DataFusionError) -> JoinError {
        JoinError::host(explain_disk_full(error, &self.disk))
    }

    fn side(&self, side: Side) -> &SpilledSide {
        match side {
            Side::Build => &self.build,
            Side::Probe => &self.probe,
        }
    }
}

/// A spill file under construction: appends a batch, or, without one, completes the file.
///
/// A closure, because the type of DataFusion's unfinished spill files has no public name.
pub(crate) struct DiskWriter(Box<Append>);

type Append = dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send;

impl SpillStore for DiskStore {
    type Writer = DiskWriter;
    type File = Arc<dyn SpillFile>;

    fn create(&self, side: Side) -> overspill_join::Result<Self::Writer> {
        let SpilledSide { manager, dictionaries } = self.side(side);
        let timeline = Arc::clone(&self.timeline);
        let mut file = manager.create_in_progress_file("spilling a join").map_err(|error| self.explain(error))?;
        let dictionaries = Arc::clone(dictionaries);
        let mut written = 0;
        Ok(DiskWriter(Box::new(move |batch| {
            let writing = timeline.writing();
            let _writing = writing.enter();
            let disk_file = file.file().cloned();
            let done = match batch {
                Some(batch) => {
                    dictionaries.note(batch);
                    writing.record("rows", batch.num_rows());
                    file.append_batch(batch).map(|_| None)
                }
                None => file.finish(),
            };
            let size = disk_file.and_then(|file| file.size()).unwrap_or(0);
            writing.record("bytes", size - std::mem::replace(&mut written, size));
            done
        })))
    }

    fn append(&self, writer: &mut Self::Writer, batch: &RecordBatch) -> overspill_join::Result<()> {
        writer.0(Some(batch)).map(|_| ()).map_err(|error| self.explain(error))
    }

    fn finish(&self, mut writer: Self::Writer) -> overspill_join::Result<Self::File> {
        let file = writer.0(None).map_err(|error| self.explain(error))?;
        file.ok_or_else(|| JoinError::host(internal_datafusion_err!("a spill file was finished without a batch")))
    }
}
