//! Files of rows and states.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};

use super::functions::{Functions, Layout};
use super::metrics::Metrics;
use crate::config::OverspillConfig;
use crate::join_execution::disk::{BatchFiles, DiskFile, FileWriter};
use crate::spill::explain_disk_full;

/// Writes and reads the files of one execution, which are deleted when they are dropped.
///
/// All functions return the errors of the disk.
pub(super) struct Files {
    rows: Option<BatchFiles>,
    states: BatchFiles,
    disk: Arc<DiskManager>,
}

impl Files {
    /// `None` if the session has no temporary files.
    pub fn new(functions: &Functions, metrics: &Metrics, context: &TaskContext) -> Option<Arc<Self>> {
        let disk = Arc::clone(&context.runtime_env().disk_manager);
        let options = context.session_config().options();
        let config = options.extensions.get::<OverspillConfig>().cloned().unwrap_or_default();
        let files_of = |layout| {
            let schema = functions.schema(layout)?;
            Some(BatchFiles::new(schema, &metrics.spill, &config, context, "spilling an aggregate"))
        };
        let (rows, states) = (files_of(Layout::Rows), files_of(Layout::States)?);
        disk.tmp_files_enabled().then(|| Arc::new(Self { rows, states, disk }))
    }

    /// Rows have files of their own only if they have a layout of their own.
    fn of(&self, layout: Layout) -> &BatchFiles {
        self.rows.as_ref().filter(|_| layout == Layout::Rows).unwrap_or(&self.states)
    }

    pub fn create(&self, layout: Layout) -> Result<FileWriter> {
        self.of(layout).create().map_err(|error| explain_disk_full(error, &self.disk))
    }

    pub fn append(&self, layout: Layout, file: &mut FileWriter, batch: &RecordBatch) -> Result<()> {
        self.of(layout).append(file, batch).map_err(|error| explain_disk_full(error, &self.disk))?;
        Ok(())
    }

    /// Completes a file that has a batch.
    pub fn finish(&self, layout: Layout, file: FileWriter) -> Result<DiskFile> {
        let finished = self.of(layout).finish(file);
        finished.map(|(file, _)| file).map_err(|error| explain_disk_full(error, &self.disk))
    }

    pub fn read(&self, layout: Layout, file: DiskFile) -> SendableRecordBatchStream {
        self.of(layout).read(file)
    }
}
