//! The plan node.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::TryStreamExt;
use tracing::debug_span;

use super::metrics::AdmissionMetrics;
use super::query::Admission;
use super::stream::AdmittedStream;
use crate::scheduler::{Prediction, Scheduler};

/// The root of a scheduled query's plan.
///
/// The first of its streams that is polled makes the query arrive at the [`Scheduler`]. All wait until the query is admitted. They then
/// execute the input with the memory that the query was granted, and without a GPU if its place is the CPU. The query ends with the
/// last of its streams that run, and when they are dropped. Streams that are executed later are a query of their own.
#[derive(Debug)]
pub struct AdmissionExec {
    admission: Arc<Admission>,
    properties: Arc<PlanProperties>,
}

impl AdmissionExec {
    /// A plan that waits for the scheduler. Its query is predicted to take what `prediction` says.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, scheduler: Arc<Scheduler>, prediction: Prediction) -> Self {
        let properties = Arc::clone(input.properties());
        Self { admission: Arc::new(Admission::new(input, scheduler, prediction)), properties }
    }
}

/// Waits for the admission, and executes a partition of the input.
async fn run(admission: Arc<Admission>, partition: usize, task: Arc<TaskContext>) -> Result<AdmittedStream> {
    let ticket = admission.ticket(&task);
    let metrics = AdmissionMetrics::new(&admission.metrics);
    let admitted = {
        let _waits = metrics.wait_time.timer();
        let _span = debug_span!("wait for admission", group = "admission", lane = "admission");
        ticket.admitted().await.map_err(DataFusionError::from)?
    };
    let context = admission.context(&admitted, &task, &metrics);
    let rows = admission.input.execute(partition, context)?;
    Ok(AdmittedStream::new(rows, ticket, admission))
}

impl DisplayAs for AdmissionExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = self.admission.scheduler.config().policy.name();
        match format {
            DisplayFormatType::Default | DisplayFormatType::Verbose => write!(f, "AdmissionExec: policy={policy}"),
            DisplayFormatType::TreeRender => writeln!(f, "policy={policy}"),
        }
    }
}

impl ExecutionPlan for AdmissionExec {
    fn name(&self) -> &'static str {
        "AdmissionExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.admission.input]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok([input]) = <[_; 1]>::try_from(children) else {
            return internal_err!("AdmissionExec has one input");
        };
        Ok(Arc::new(Self::new(input, Arc::clone(&self.admission.scheduler), self.admission.prediction)))
    }

    fn execute(&self, partition: usize, task: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        // A plan within a query that was admitted does not wait for itself.
        if Admission::is_within(&task) {
            return self.admission.input.execute(partition, task);
        }
        let run = run(Arc::clone(&self.admission), partition, task);
        let rows = futures::stream::once(run).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.admission.metrics.clone_inner())
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match inputs {
            [input] => Ok(Arc::clone(input)),
            _ => internal_err!("AdmissionExec over {} inputs", inputs.len()),
        }
    }
}
