//! What the streams of a query share.

use std::sync::{Arc, Weak};

use datafusion::execution::TaskContext;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use overspill_machine::DeviceKind;
use overspill_schedule::Place;
use parking_lot::Mutex;

use super::metrics::AdmissionMetrics;
use crate::config::{Choice, OverspillConfig};
use crate::runtime::OverspillRuntime;
use crate::scheduler::{Admitted, Prediction, QueryUser, Scheduler, Ticket};

/// What the streams of a plan share.
#[derive(Debug)]
pub(super) struct Admission {
    pub input: Arc<dyn ExecutionPlan>,
    pub scheduler: Arc<Scheduler>,
    pub prediction: Prediction,
    pub metrics: ExecutionPlanMetricsSet,
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

impl Admission {
    pub fn new(input: Arc<dyn ExecutionPlan>, scheduler: Arc<Scheduler>, prediction: Prediction) -> Self {
        Self { input, scheduler, prediction, metrics: ExecutionPlanMetricsSet::new(), current: Mutex::default() }
    }

    /// Whether a plan runs within a query that has been admitted.
    pub fn is_within(task: &TaskContext) -> bool {
        task.session_config().get_extension::<IsAdmitted>().is_some()
    }

    /// The ticket of the query that runs. If none does, a query arrives.
    pub fn ticket(&self, task: &TaskContext) -> Arc<Ticket> {
        // A lost GPU may be opened again for this, which takes seconds: not under the lock.
        let prediction = self.prediction_now(task);
        let mut current = self.current.lock();
        if let Some(ticket) = current.ticket.upgrade() {
            return ticket;
        }
        let user = task.session_config().get_extension::<QueryUser>();
        let user = user.map(|user| user.as_ref().clone()).unwrap_or_default();
        let partitions = task.session_config().target_partitions();
        let ticket = Ticket::new(&self.scheduler, user, prediction, task.memory_pool(), partitions);
        let ticket = Arc::new(ticket);
        *current = Current { ticket: Arc::downgrade(&ticket), ..Current::default() };
        ticket
    }

    /// What the query takes: without a GPU, if that is lost.
    fn prediction_now(&self, task: &TaskContext) -> Prediction {
        let session = task.session_config();
        let config = session.options().extensions.get::<OverspillConfig>();
        let has_gpu = || config.is_none_or(|config| OverspillRuntime::of(session).has_gpu(config));
        Prediction { gpu: self.prediction.gpu.filter(|_| has_gpu()), ..self.prediction }
    }

    /// What all streams of the query execute the input with.
    pub fn context(&self, admitted: &Admitted, task: &TaskContext, metrics: &AdmissionMetrics) -> Arc<TaskContext> {
        let mut current = self.current.lock();
        if let Some(context) = current.context.upgrade() {
            return context;
        }
        if !std::mem::replace(&mut current.is_counted, true) {
            metrics.admitted(admitted);
        }
        let runtime = RuntimeEnv { memory_pool: Arc::clone(&admitted.memory), ..task.runtime_env().as_ref().clone() };
        let config = task.session_config().clone();
        let mut config = config.with_extension(Arc::new(IsAdmitted)).with_extension(Arc::clone(&admitted.gpu));
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
}
