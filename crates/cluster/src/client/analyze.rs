//! `EXPLAIN ANALYZE` of a query on a cluster.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use ballista_core::serde::protobuf::{GetJobMetricsResult, OperatorMetricsSet};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use futures::TryStreamExt;

use super::job::metrics_of;
use super::query::ClusterQueryExec;
use crate::error::failed;

/// Runs a query on a cluster, and returns what each operator of each stage has counted in place of its rows.
#[derive(Debug)]
pub struct ClusterAnalyzeExec {
    query: Arc<ClusterQueryExec>,
    properties: Arc<PlanProperties>,
}

impl ClusterAnalyzeExec {
    /// Analyzes a query. The schema is that of an explanation: a name and a text.
    pub fn new(query: Arc<ClusterQueryExec>, schema: SchemaRef) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Self { query, properties: Arc::new(properties) }
    }
}

async fn analyzed(query: Arc<ClusterQueryExec>, context: Arc<TaskContext>, schema: SchemaRef) -> Result<RecordBatch> {
    let mut rows = query.execute(0, context)?;
    while rows.try_next().await?.is_some() {}
    let job = query.job().ok_or_else(|| internal_datafusion_err!("a query without a job"))?;
    let metrics = metrics_of(query.cluster(), job).await?;
    drop(rows);
    let columns = [vec!["Plan with Metrics".to_owned()], vec![in_words(&metrics)?]];
    let columns = columns.map(|column| Arc::new(StringArray::from(column)) as ArrayRef);
    Ok(RecordBatch::try_new(schema, columns.into())?)
}

/// The stages, each with its operators and what they have counted in all tasks.
fn in_words(metrics: &GetJobMetricsResult) -> Result<String> {
    let mut lines = Vec::new();
    for stage in &metrics.stages {
        lines.push(format!("stage {} of {} partitions", stage.stage_id, stage.partitions));
        for operator in &stage.operators {
            let counted = OperatorMetricsSet { metrics: operator.metrics.clone() };
            let counted: MetricsSet =
                counted.try_into().map_err(|error| failed(format!("metrics cannot be read: {error}")))?;
            let counted = counted.aggregate_by_name().sorted_for_display().timestamps_removed();
            let indent = "  ".repeat(operator.depth as usize + 1);
            lines.push(format!("{indent}{}, metrics=[{counted}]", operator.operator_desc));
        }
    }
    Ok(lines.join("\n"))
}

impl DisplayAs for ClusterAnalyzeExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterAnalyzeExec: scheduler={}", self.query.cluster().scheduler)
    }
}

impl ExecutionPlan for ClusterAnalyzeExec {
    fn name(&self) -> &str {
        "ClusterAnalyzeExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let analyzed = analyzed(Arc::clone(&self.query), context, self.schema());
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), futures::stream::once(analyzed))))
    }
}
