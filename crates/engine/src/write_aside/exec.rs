//! The plan node.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::DataFusionError;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::TryStreamExt;

use super::destination::Destination;
use super::staged::Staged;

/// Runs a sink that writes files, and puts the files in place if it succeeds.
///
/// It returns the sink's result, the number of rows written. If the sink fails, or the stream is dropped, the files are
/// removed, and the destination is unchanged.
#[derive(Debug)]
pub struct WriteAsideExec {
    sink: Arc<dyn ExecutionPlan>,
    destination: Destination,
}

impl WriteAsideExec {
    pub(super) fn new(sink: Arc<dyn ExecutionPlan>, destination: Destination) -> Self {
        Self { sink, destination }
    }

    /// The sink.
    pub fn sink(&self) -> &Arc<dyn ExecutionPlan> {
        &self.sink
    }

    /// Where the files are to be.
    pub fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Whether a session can write files aside: a program may have replaced its object store for this machine's files.
    ///
    /// # Errors
    /// The session has no object store for files.
    pub fn can_write_aside(runtime: &RuntimeEnv) -> Result<bool> {
        let store = runtime.object_store(ObjectStoreUrl::local_filesystem())?;
        Ok(store.to_string().starts_with("LocalFileSystem"))
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

    /// As the sink does. DataFusion looks for the sort of the query below nodes that keep an order, and removes a sort that it does not find.
    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
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
        if !Self::can_write_aside(&context.runtime_env())? {
            return self.sink.execute(partition, context);
        }
        let (sink, destination) = (Arc::clone(&self.sink), self.destination.clone());
        let written = async move {
            let staged = Staged::write(sink, partition, destination, &context).await?;
            let batches = staged.result().to_vec();
            staged.commit(vec![], &context).await?;
            Ok::<_, DataFusionError>(futures::stream::iter(batches.into_iter().map(Ok)))
        };
        let batches = futures::stream::once(written).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }
}
