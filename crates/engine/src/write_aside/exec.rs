//! The plan node.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::error::DataFusionError;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt};
use tokio::task::{JoinError, spawn_blocking};

use super::destination::Destination;
use super::staging::Staging;
use super::store::context_with_staging;

/// Runs a sink that writes files, and puts the files in place if it succeeds.
///
/// It returns the sink's result, the number of rows written. If the sink fails, or the stream is dropped, the files are
/// removed, and the destination is unchanged.
#[derive(Debug)]
pub(super) struct WriteAsideExec {
    sink: Arc<dyn ExecutionPlan>,
    destination: Destination,
}

impl WriteAsideExec {
    pub fn new(sink: Arc<dyn ExecutionPlan>, destination: Destination) -> Self {
        Self { sink, destination }
    }
}

impl DisplayAs for WriteAsideExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => {
                write!(f, "WriteAsideExec: {}", self.destination)
            }
            DisplayFormatType::TreeRender => write!(f, "{}", self.destination),
        }
    }
}

impl ExecutionPlan for WriteAsideExec {
    fn name(&self) -> &str {
        "WriteAsideExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.sink.properties()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.sink]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(Arc::clone(&children[0]), self.destination.clone())))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let store = context.runtime_env().object_store(ObjectStoreUrl::local_filesystem())?;
        // A program may have replaced the object store for this machine's files.
        if !store.to_string().starts_with("LocalFileSystem") {
            return self.sink.execute(partition, context);
        }
        let (sink, destination) = (Arc::clone(&self.sink), self.destination.clone());
        let written = async move {
            let batches = write(sink, partition, destination, context).await?;
            Ok::<_, DataFusionError>(futures::stream::iter(batches.into_iter().map(Ok)))
        };
        let batches = futures::stream::once(written).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }
}

/// Abandons files on drop; files that are already in place stay.
struct GiveUp(Arc<Staging>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

async fn write(
    sink: Arc<dyn ExecutionPlan>,
    partition: usize,
    destination: Destination,
    context: Arc<TaskContext>,
) -> Result<Vec<RecordBatch>> {
    let interrupted = |error: JoinError| exec_datafusion_err!("Writing files was interrupted: {error}");
    let opened = spawn_blocking(|| Staging::open(destination)).await.map_err(interrupted)??;
    let staging = GiveUp(Arc::new(opened));
    let context = context_with_staging(&context, &staging.0)?;
    let mut stream = sink.execute(partition, Arc::clone(&context))?;
    let mut batches = vec![];
    while let Some(batch) = stream.next().await {
        batches.push(batch.map_err(|error| staging.0.explain(error))?);
    }
    drop(stream);
    let finished = Arc::clone(&staging.0);
    spawn_blocking(move || finished.commit()).await.map_err(interrupted)??;
    // Tables over these folders now have other files.
    if let Some(files) = context.runtime_env().cache_manager.get_list_files_cache() {
        files.clear();
    }
    Ok(batches)
}
