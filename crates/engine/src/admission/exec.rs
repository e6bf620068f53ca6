//! The plan node.

use std::fmt;
use std::sync::{Arc, Weak};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics, internal_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::TryStreamExt;
use overspill_machine::DeviceKind;
use overspill_schedule::Place;
use parking_lot::Mutex;
use tracing::debug_span;

use super::metrics::AdmissionMetrics;
use super::stream::AdmittedStream;
use crate::config::{Choice, OverspillConfig};
use crate::scheduler::{Admitted, Prediction, QueryUser, Scheduler, Ticket};

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

/// What the streams of a plan share.
#[derive(Debug)]
pub(super) struct Admission {
    input: Arc<dyn ExecutionPlan>,
    scheduler: Arc<Scheduler>,
    prediction: Prediction,
    metrics: ExecutionPlanMetricsSet,
    current: Mutex<Current>,
}

/// The query that runs.
#[derive(Debug, Default)]
struct Current {
    ticket: Weak<Ticket>,
    /// How many of its streams have returned all their rows.
    ended: usize,
    /// What they execute the input with.
    context: Weak<TaskContext>,
    /// Whether its metrics have the admission.
    is_counted: bool,
}

/// Tells plans within the query that it has been admitted.
#[derive(Debug)]
struct IsAdmitted;

impl AdmissionExec {
    /// A plan that waits for the scheduler. Its query is predicted to take what `prediction` says.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, scheduler: Arc<Scheduler>, prediction: Prediction) -> Self {
        let properties = Arc::clone(input.properties());
        let (metrics, current) = (ExecutionPlanMetricsSet::new(), Mutex::default());
        Self { admission: Arc::new(Admission { input, scheduler, prediction, metrics, current }), properties }
    }
}

impl Admission {
    /// The ticket of the query that runs. If none does, a query arrives.
    fn ticket(&self, task: &TaskContext) -> Arc<Ticket> {
        let mut current = self.current.lock();
        if let Some(ticket) = current.ticket.upgrade() {
            return ticket;
        }
        let user = task.session_config().get_extension::<QueryUser>();
        let user = user.map(|user| user.as_ref().clone()).unwrap_or_default();
        let partitions = task.session_config().target_partitions();
        let ticket = Ticket::new(&self.scheduler, user, self.prediction, task.memory_pool(), partitions);
        let ticket = Arc::new(ticket);
        *current = Current { ticket: Arc::downgrade(&ticket), ..Current::default() };
        ticket
    }

    /// What all streams of the query execute the input with.
    fn context(&self, admitted: &Admitted, task: &TaskContext, metrics: &AdmissionMetrics) -> Arc<TaskContext> {
        let mut current = self.current.lock();
        if let Some(context) = current.context.upgrade() {
            return context;
        }
        if !std::mem::replace(&mut current.is_counted, true) {
            metrics.admitted(admitted);
        }
        let runtime = RuntimeEnv { memory_pool: Arc::clone(&admitted.memory), ..task.runtime_env().as_ref().clone() };
        let mut config = task.session_config().clone().with_extension(Arc::new(IsAdmitted));
        if admitted.place == Place::Cpu
            && let Some(overspill) = config.options_mut().extensions.get_mut::<OverspillConfig>()
        {
            overspill.device = Choice(Some(DeviceKind::Cpu));
        }
        let context = Arc::new(TaskContext::new(
            task.task_id(),
            task.session_id(),
            config,
            task.scalar_functions().clone(),
            task.higher_order_functions().clone(),
            task.aggregate_functions().clone(),
            task.window_functions().clone(),
            Arc::new(runtime),
        ));
        current.context = Arc::downgrade(&context);
        context
    }

    /// A stream has returned all its rows. After all of them the time of the query is known.
    pub fn ended(&self, ticket: &Arc<Ticket>) {
        let mut current = self.current.lock();
        if current.ticket.as_ptr() == Arc::as_ptr(ticket) {
            current.ended += 1;
            if current.ended == self.input.output_partitioning().partition_count() {
                ticket.complete();
            }
        }
    }

    async fn run(self: Arc<Self>, partition: usize, task: Arc<TaskContext>) -> Result<AdmittedStream> {
        let ticket = self.ticket(&task);
        let metrics = AdmissionMetrics::new(&self.metrics);
        let admitted = {
            let _waits = metrics.wait_time.timer();
            let _span = debug_span!("wait for admission", group = "admission", lane = "admission");
            ticket.admitted().await.map_err(DataFusionError::from)?
        };
        let context = self.context(&admitted, &task, &metrics);
        let rows = self.input.execute(partition, context)?;
        Ok(AdmittedStream::new(rows, ticket, self))
    }
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
        if task.session_config().get_extension::<IsAdmitted>().is_some() {
            return self.admission.input.execute(partition, task);
        }
        let run = Arc::clone(&self.admission).run(partition, task);
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
