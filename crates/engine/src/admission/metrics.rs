//! What EXPLAIN ANALYZE shows of an admission.

use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder, Time};
use overspill_schedule::{Place, Reason};

use crate::scheduler::Admitted;

/// What EXPLAIN ANALYZE shows of an admission.
#[derive(Debug, Clone)]
pub(super) struct AdmissionMetrics {
    /// How long the query waited.
    pub wait_time: Time,
    metrics: ExecutionPlanMetricsSet,
}

impl AdmissionMetrics {
    pub fn new(metrics: &ExecutionPlanMetricsSet) -> Self {
        Self { wait_time: MetricBuilder::new(metrics).subset_time("wait_time", 0), metrics: metrics.clone() }
    }

    /// Counts an admission, by the place and why the query runs there.
    pub fn admitted(&self, admitted: &Admitted) {
        let place = match admitted.place {
            Place::Cpu => "cpu_admissions",
            Place::Gpu => "gpu_admissions",
        };
        let reason = match admitted.reason {
            Reason::Only => "no other place",
            Reason::Brief => "brief",
            Reason::Turn => "its turn",
            Reason::Shorter => "shorter on the CPU than others",
            Reason::Sooner => "all end sooner",
            Reason::WaitedEnough => "waited enough",
            Reason::TooLarge => "too large for the GPU",
            Reason::GpuLost => "the GPU is lost",
        };
        MetricBuilder::new(&self.metrics).with_new_label("reason", reason.to_owned()).global_counter(place).add(1);
    }
}
