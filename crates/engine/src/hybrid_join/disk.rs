//! Spill files: Arrow IPC, written and accounted by DataFusion's spill and disk managers.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::execution::{DiskManager, SendableRecordBatchStream, SpillFile, TaskContext};
use datafusion::physical_plan::SpillManager;
use datafusion::physical_plan::metrics::SpillMetrics;
use overspill_join::JoinError;
use overspill_join::spec::{JoinSpec, Side};
use overspill_join::spill::SpillStore;

use crate::spill::explain_disk_full;

/// The spill files of one execution of a join.
#[derive(Debug)]
pub(super) struct DiskStore {
    disk: Arc<DiskManager>,
    build: SpillManager,
    probe: SpillManager,
}

impl DiskStore {
    pub fn new(spec: &JoinSpec, metrics: &SpillMetrics, context: &TaskContext) -> Self {
        let manager = |side| {
            SpillManager::new(context.runtime_env(), metrics.clone(), Arc::clone(spec.schema(side)))
                .with_compression_type(context.session_config().spill_compression())
        };
        let disk = Arc::clone(&context.runtime_env().disk_manager);
        Self { disk, build: manager(Side::Build), probe: manager(Side::Probe) }
    }

    /// Reads a file back, ahead of the consumer by a few batches.
    pub fn read(&self, side: Side, file: Arc<dyn SpillFile>) -> Result<SendableRecordBatchStream> {
        self.manager(side).read_spill_as_stream(file, None)
    }

    fn explain(&self, error: DataFusionError) -> JoinError {
        JoinError::host(explain_disk_full(error, &self.disk))
    }

    fn manager(&self, side: Side) -> &SpillManager {
        match side {
            Side::Build => &self.build,
            Side::Probe => &self.probe,
        }
    }
}

/// A spill file under construction: appends a batch, or, without one, completes the file.
///
/// A closure, because the type of DataFusion's unfinished spill files has no public name.
pub(super) struct DiskWriter(Box<Append>);

type Append = dyn FnMut(Option<&RecordBatch>) -> Result<Option<Arc<dyn SpillFile>>> + Send;

impl SpillStore for DiskStore {
    type Writer = DiskWriter;
    type File = Arc<dyn SpillFile>;

    fn create(&self, side: Side) -> overspill_join::Result<Self::Writer> {
        let mut file =
            self.manager(side).create_in_progress_file("spilling a join").map_err(|error| self.explain(error))?;
        Ok(DiskWriter(Box::new(move |batch| match batch {
            Some(batch) => file.append_batch(batch).map(|_| None),
            None => file.finish(),
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
