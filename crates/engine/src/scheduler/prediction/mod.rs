//! How long a query will take.
//!
//! As in paper 5, section 4.2, each kind of operator has a coefficient ([coefficients]), and takes that times its rows ([operators]). Rows
//! are those that the plan estimates. What plans of the same shape took before corrects the sum ([history]).

mod coefficients;
mod history;
mod operators;

use datafusion::physical_plan::ExecutionPlan;
use overspill_schedule::Class;

pub(crate) use coefficients::{ByKind, Kind};
pub(super) use history::History;
pub(super) use operators::table_bytes;
pub(crate) use operators::work;

use crate::config::OverspillConfig;
use crate::runtime::OverspillRuntime;

/// What a query is predicted to take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Prediction {
    /// Seconds on the CPU.
    pub cpu: f64,
    /// Seconds with the GPU; `None` if the query cannot use one.
    pub gpu: Option<f64>,
    /// Bytes of GPU memory.
    pub gpu_memory: u64,
    /// What it does on the GPU.
    pub class: Class,
    /// Plans that differ in constants alone have the same.
    pub shape: u64,
}

impl Prediction {
    /// What a plan on `threads` threads takes by its operators and their estimated rows.
    pub fn of(plan: &dyn ExecutionPlan, config: &OverspillConfig, runtime: &OverspillRuntime, threads: usize) -> Self {
        let (work, shape) = work(plan, config, runtime, threads);
        let measured = runtime.machine().queries();
        let cost = measured.map_or_else(ByKind::estimated, |measured| ByKind::named(&measured.operators));
        let gpu = measured.and_then(|measured| measured.gpu);
        let gpu_cost = gpu.map_or(ByKind::of_gpu(1.0, 1.0), |gpu| ByKind::of_gpu(gpu.join_cost, gpu.aggregate_cost));
        work.predicted(&cost, &gpu_cost, shape)
    }
}
