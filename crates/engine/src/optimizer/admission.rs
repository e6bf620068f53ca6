//! Puts plans of scheduled queries behind their admission.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::admission::AdmissionExec;
use crate::config::OverspillConfig;
use crate::planning::PlanningSession;
use crate::scheduler::{Prediction, Scheduler};

/// Puts an [`AdmissionExec`] at the root of each plan.
#[derive(Debug)]
pub(crate) struct AdmissionRule(pub Arc<Scheduler>);

impl PhysicalOptimizerRule for AdmissionRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if plan.is::<AdmissionExec>() {
            return Ok(plan);
        }
        let settings = config.extensions.get::<OverspillConfig>().cloned().unwrap_or_default();
        let runtime = PlanningSession::runtime(config);
        let threads = config.execution.target_partitions;
        let prediction = Prediction::of(plan.as_ref(), &settings, &runtime, threads);
        Ok(Arc::new(AdmissionExec::new(plan, Arc::clone(&self.0), prediction)))
    }

    fn name(&self) -> &str {
        "admission"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
