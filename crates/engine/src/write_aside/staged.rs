//! Files that a sink has written, and that are not in place yet.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;
use tokio::task::{JoinError, spawn_blocking};

use super::destination::Destination;
use super::staging::{StagedFile, Staging};
use super::store::context_with_staging;

/// The files of a sink. Those that are not in place are removed when this is dropped.
#[derive(Debug)]
pub struct Staged {
    staging: Arc<Staging>,
    result: Vec<RecordBatch>,
}

impl Staged {
    /// Runs a partition of a sink, whose files are written next to their destination.
    ///
    /// # Errors
    /// Something at the destination must not be replaced, or the sink fails. Then no file is left.
    pub async fn write(
        sink: Arc<dyn ExecutionPlan>,
        partition: usize,
        destination: Destination,
        context: &Arc<TaskContext>,
    ) -> Result<Self> {
        let staging = spawn_blocking(|| Staging::open(destination)).await.map_err(interrupted)??;
        // From here on it is removed on drop.
        let mut staged = Self { staging: Arc::new(staging), result: vec![] };
        let context = context_with_staging(context, &staged.staging)?;
        let mut stream = sink.execute(partition, context)?;
        while let Some(batch) = stream.next().await {
            staged.result.push(batch.map_err(|error| staged.staging.explain(error))?);
        }
        Ok(staged)
    }

    /// What the sink has returned: the number of rows written.
    pub fn result(&self) -> &[RecordBatch] {
        &self.result
    }

    /// The files.
    pub fn files(&self) -> Vec<StagedFile> {
        self.staging.files()
    }

    /// Puts all files in place, or none: these, and those of other processes that have written for the same destination on the same
    /// file system. The other processes must keep theirs until this has returned.
    ///
    /// # Errors
    /// The destination has changed, or a file cannot be moved.
    pub async fn commit(self, others: Vec<StagedFile>, context: &TaskContext) -> Result<()> {
        let staging = Arc::clone(&self.staging);
        spawn_blocking(move || staging.commit(others)).await.map_err(interrupted)??;
        // Tables over these folders now have other files.
        if let Some(files) = context.runtime_env().cache_manager.get_list_files_cache() {
            files.clear();
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.staging.give_up();
    }
}

fn interrupted(error: JoinError) -> datafusion::error::DataFusionError {
    exec_datafusion_err!("Writing files was interrupted: {error}")
}
