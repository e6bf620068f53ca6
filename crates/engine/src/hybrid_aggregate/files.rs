//! Files of rows of states.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};

use super::functions::Functions;
use super::metrics::Metrics;
use crate::config::OverspillConfig;
use crate::join_execution::disk::{BatchFiles, DiskFile, FileWriter};
use crate::spill::explain_disk_full;

/// Writes and reads the files of one execution, which are deleted when they are dropped.
///
/// All functions return the errors of the disk.
pub(super) struct Files {
    files: BatchFiles,
    disk: Arc<DiskManager>,
}

impl Files {
    /// `None` if the session has no temporary files.
    pub fn new(functions: &Functions, metrics: &Metrics, context: &TaskContext) -> Option<Arc<Self>> {
        let disk = Arc::clone(&context.runtime_env().disk_manager);
        let options = context.session_config().options();
        let config = options.extensions.get::<OverspillConfig>().cloned().unwrap_or_default();
        disk.tmp_files_enabled().then(|| {
            let files = BatchFiles::new(functions.states(), &metrics.spill, &config, context, "spilling an aggregate");
            Arc::new(Self { files, disk })
        })
    }

    pub fn create(&self) -> Result<FileWriter> {
        self.files.create().map_err(|error| explain_disk_full(error, &self.disk))
    }

    pub fn append(&self, file: &mut FileWriter, batch: &RecordBatch) -> Result<()> {
        self.files.append(file, batch).map_err(|error| explain_disk_full(error, &self.disk))?;
        Ok(())
    }

    /// Completes a file that has a batch.
    pub fn finish(&self, file: FileWriter) -> Result<DiskFile> {
        let finished = self.files.finish(file);
        finished.map(|(file, _)| file).map_err(|error| explain_disk_full(error, &self.disk))
    }

    pub fn read(&self, file: DiskFile) -> SendableRecordBatchStream {
        self.files.read(file)
    }
}
