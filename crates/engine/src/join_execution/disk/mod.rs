//! Spill files: Arrow IPC, written by DataFusion's spill manager, or compressed blocks. DataFusion's disk manager accounts for both.

mod blocks;
mod files;
mod format;

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::DataFusionError;
use datafusion::execution::{DiskManager, SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricCategory, SpillMetrics};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use overspill_join::JoinError;
use overspill_join::spec::Side;
use overspill_join::spill::SpillStore;

use super::narrow_dictionaries::NarrowDictionaries;
use super::timeline::JoinTimeline;
use crate::config::OverspillConfig;
use crate::spill::explain_disk_full;
pub(crate) use files::{BatchFiles, DiskFile, FileWriter};

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
    files: BatchFiles,
    dictionaries: Arc<NarrowDictionaries>,
}

impl DiskStore {
    pub fn new(
        build: &SchemaRef,
        probe: &SchemaRef,
        metrics: &DiskMetrics,
        config: &OverspillConfig,
        context: &TaskContext,
        timeline: Arc<JoinTimeline>,
    ) -> Self {
        let side = |schema: &SchemaRef| SpilledSide {
            files: BatchFiles::new(schema, &metrics.spill, config, context, "spilling a join"),
            dictionaries: Arc::new(NarrowDictionaries::new(schema)),
        };
        let disk = Arc::clone(&context.runtime_env().disk_manager);
        Self { disk, build: side(build), probe: side(probe), metrics: metrics.clone(), timeline }
    }

    /// Reads a file back, ahead of the consumer by a few batches.
    pub fn read(&self, side: Side, file: DiskFile) -> SendableRecordBatchStream {
        let SpilledSide { files, dictionaries } = self.side(side);
        let dictionaries = Arc::clone(dictionaries);
        let rows = self.metrics.read_rows.clone();
        let bytes = file.size();
        self.metrics.read_bytes.add(bytes as usize);
        let reading = self.timeline.reading(bytes);
        let batches = files.read(file);
        let schema = batches.schema();
        let batches = batches.map(move |batch| {
            let _reading = &reading;
            let batch = batch?;
            rows.add(batch.num_rows());
            Ok(dictionaries.restore(batch)?)
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
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

impl SpillStore for DiskStore {
    type Writer = DiskWriter;
    type File = DiskFile;

    fn create(&self, side: Side) -> overspill_join::Result<Self::Writer> {
        let file = self.side(side).files.create().map_err(|error| self.explain(error))?;
        Ok(DiskWriter { side, file })
    }

    fn append(&self, writer: &mut Self::Writer, batch: &RecordBatch) -> overspill_join::Result<()> {
        let SpilledSide { files, dictionaries } = self.side(writer.side);
        let writing = self.timeline.writing();
        let _writing = writing.enter();
        dictionaries.note(batch);
        writing.record("rows", batch.num_rows());
        let bytes = files.append(&mut writer.file, batch).map_err(|error| self.explain(error))?;
        writing.record("bytes", bytes);
        Ok(())
    }

    fn finish(&self, writer: Self::Writer) -> overspill_join::Result<Self::File> {
        let writing = self.timeline.writing();
        let _writing = writing.enter();
        let finished = self.side(writer.side).files.finish(writer.file);
        let (file, bytes) = finished.map_err(|error| self.explain(error))?;
        writing.record("bytes", bytes);
        Ok(file)
    }
}

/// A spill file under construction.
pub(crate) struct DiskWriter {
    side: Side,
    file: FileWriter,
}
