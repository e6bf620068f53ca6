//! Rows that another join hands over.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use parking_lot::Mutex;

/// An input whose streams are already running. Each can be executed once.
pub(super) struct HandOverExec {
    streams: Mutex<Vec<Option<SendableRecordBatchStream>>>,
    properties: Arc<PlanProperties>,
}

impl HandOverExec {
    pub fn new(schema: SchemaRef, streams: Vec<SendableRecordBatchStream>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(streams.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self { streams: Mutex::new(streams.into_iter().map(Some).collect()), properties: Arc::new(properties) }
    }
}

impl fmt::Debug for HandOverExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandOverExec").field("properties", &self.properties).finish_non_exhaustive()
    }
}

impl DisplayAs for HandOverExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("HandOverExec")
    }
}

impl ExecutionPlan for HandOverExec {
    fn name(&self) -> &str {
        "HandOverExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let stream = self.streams.lock().get_mut(partition).and_then(Option::take);
        stream.ok_or_else(|| internal_datafusion_err!("rows that a join hands over are read twice"))
    }
}
