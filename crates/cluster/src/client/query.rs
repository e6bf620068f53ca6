//! The plan node of a query on a cluster.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use ballista_core::serde::protobuf::KeyValuePair;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, displayable,
};
use datafusion_proto::physical_plan::AsExecutionPlan;
use datafusion_proto::protobuf::PhysicalPlanNode;
use futures::stream::{self, TryStreamExt};
use parking_lot::Mutex;

use super::Cluster;
use super::job::{Attempt, Ended, Rows};
use crate::ClusterCodec;
use crate::declared::declared;
use crate::error::{failed, refused};

/// How often a query starts again after an executor was lost.
const ATTEMPTS: usize = 6;

/// Runs a plan on a cluster. Its rows are those of the plan's last stage, in one partition.
#[derive(Debug)]
pub struct ClusterQueryExec {
    cluster: Cluster,
    plan: Arc<dyn ExecutionPlan>,
    encoded: Arc<[u8]>,
    settings: Vec<KeyValuePair>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// The job whose rows were returned.
    job: Arc<Mutex<Option<String>>>,
}

impl ClusterQueryExec {
    /// Runs `plan` on a cluster, with these settings.
    ///
    /// # Errors
    /// The plan has a node that cannot travel.
    pub fn try_new(cluster: Cluster, plan: Arc<dyn ExecutionPlan>, settings: Vec<KeyValuePair>) -> Result<Self> {
        let mut encoded = Vec::new();
        let written = PhysicalPlanNode::try_from_physical_plan(Arc::clone(&plan), &ClusterCodec::default())
            .and_then(|node| node.try_encode(&mut encoded));
        if let Err(error) = written {
            return refused(format!(
                "This query does not run on a cluster, as a part of its plan cannot be sent to executors ({}): run it without \
                 --cluster",
                error.strip_backtrace().lines().next().unwrap_or_default()
            ));
        }
        let properties = PlanProperties::new(
            EquivalenceProperties::new(plan.schema()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        );
        Ok(Self {
            cluster,
            plan,
            encoded: encoded.into(),
            settings,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            job: Arc::default(),
        })
    }

    /// Where the query runs.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The job whose rows were returned, if there were any.
    pub fn job(&self) -> Option<String> {
        self.job.lock().clone()
    }
}

/// Runs a query until no executor is lost before its first rows are here.
async fn rows(attempt: Attempt, job: Arc<Mutex<Option<String>>>) -> Result<Rows> {
    let mut lost = String::new();
    for _ in 0..ATTEMPTS {
        match attempt.run().await {
            Ok(rows) => {
                *job.lock() = Some(rows.job().to_owned());
                return Ok(rows);
            }
            Err(Ended::Lost(reason)) => {
                tracing::warn!(reason, "the query starts again");
                lost = reason;
            }
            Err(Ended::Failed(error)) => return Err(error),
        }
    }
    Err(failed(format!(
        "The query was started {ATTEMPTS} times, and each time an executor or its rows were lost, at last: {lost}. Look at the executors, then run \
         it again"
    )))
}

impl DisplayAs for ClusterQueryExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterQueryExec: scheduler={}", self.cluster.scheduler)?;
        if matches!(format, DisplayFormatType::Verbose) {
            write!(f, "\n{}", displayable(self.plan.as_ref()).indent(false))?;
        }
        Ok(())
    }
}

impl ExecutionPlan for ClusterQueryExec {
    fn name(&self) -> &str {
        "ClusterQueryExec"
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

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("partition {partition} of a query on a cluster, which has one");
        }
        let attempt = Attempt {
            cluster: self.cluster.clone(),
            plan: Arc::clone(&self.encoded),
            settings: self.settings.clone(),
            session: context.session_id(),
        };
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let (schema, job) = (self.schema(), Arc::clone(&self.job));
        let arriving = stream::once(rows(attempt, job)).map_ok(|rows| {
            stream::try_unfold(rows, |mut rows| async move {
                let batch = rows.next().await?;
                Ok::<_, DataFusionError>(batch.map(|batch| (batch, rows)))
            })
        });
        let arriving = arriving.try_flatten().and_then(move |batch| {
            std::future::ready(declared(&schema, batch).map(|batch| batch.record_output(&baseline)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), arriving)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
