//! The plan node in place of what the first rank does alone.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};
use futures::StreamExt;
use futures::stream::select_all;

use super::properties;

/// Stands on the other ranks for a part of a plan that runs on the first. It has no rows. Its inputs, which have none either, are the
/// exchanges below that part: they send rows to the first rank.
#[derive(Debug)]
pub struct AwayExec {
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
}

impl AwayExec {
    /// Stands for a part with this schema.
    pub fn new(schema: SchemaRef, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Self {
        Self { inputs, properties: properties(schema, Partitioning::UnknownPartitioning(1)) }
    }
}

impl DisplayAs for AwayExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "AwayExec"),
        }
    }
}

impl ExecutionPlan for AwayExec {
    fn name(&self) -> &str {
        "AwayExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(self.schema(), inputs)))
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let mut streams = vec![];
        for input in &self.inputs {
            for partition in 0..input.output_partitioning().partition_count() {
                streams.push(input.execute(partition, Arc::clone(&context))?);
            }
        }
        // Rows of an input would have another schema.
        let rows = select_all(streams).filter(|batch| std::future::ready(batch.is_err()));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
