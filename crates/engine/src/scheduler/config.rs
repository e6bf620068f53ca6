//! What a scheduler goes by.

use std::time::Duration;

use overspill_schedule::{CoRun, Cpu, Limits, OverspillSettings, PolicyKind, Processors};

use crate::runtime::OverspillRuntime;

/// What a [`Scheduler`](super::Scheduler) goes by.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerConfig {
    /// Who decides.
    pub policy: PolicyKind,
    /// How many queries may be on the GPU. The default has no limit but the memory, as the default policy goes by what queries cost
    /// each other there.
    pub gpu_limits: Limits,
    /// How queries slow each other. By default, queries on the CPU share all cores, and several use them better than one alone. Queries
    /// on the GPU slow each other as paper 5 reports.
    pub processors: Processors,
    /// The most queries that run at once, beside as many brief ones. Fewer run if the memory limit has no room for them. 0 is as 1. The
    /// default, 2, is for queries that use all cores. With a GPU that several may share it is better higher.
    pub most_running: usize,
    /// A query that is predicted to take less than this on the CPU starts at once.
    pub brief: Duration,
    /// How long a query may take from its arrival to its end.
    pub time_limit: Option<Duration>,
}

impl SchedulerConfig {
    /// The defaults, with this policy. How queries slow each other is what `overspill machine --measure` has found, as far as it was
    /// measured. So are the limits of policies other than ours, which else are the paper's.
    pub fn measured(policy: PolicyKind, runtime: &OverspillRuntime) -> Self {
        let defaults = Self { gpu_limits: policy.compared_limits(), policy, ..Self::default() };
        let Some(measured) = runtime.machine().queries() else { return defaults };
        let mut config = defaults;
        config.processors.cpu = Cpu::Overlapping(measured.overlap);
        if let Some(gpu) = measured.gpu {
            config.processors.co_run = CoRun { join: gpu.join_loss, aggregate: gpu.aggregate_loss };
            if config.gpu_limits != Limits::NONE {
                let Limits { memory, .. } = config.gpu_limits;
                config.gpu_limits = Limits { joins: gpu.joins, aggregates: gpu.aggregates, both: gpu.both, memory };
            }
        }
        config
    }
}

/// As few queries as keep all cores busy: they have the most memory each, and a user's query that comes waits for few others.
const MOST_RUNNING: usize = 2;

/// How many times as much several queries of TPC-H do together as one alone, on two cores.
const OVERLAP: f64 = 1.2;

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            policy: PolicyKind::Overspill(OverspillSettings::default()),
            gpu_limits: Limits::NONE,
            processors: Processors { cpu: Cpu::Overlapping(OVERLAP), co_run: CoRun::default() },
            most_running: MOST_RUNNING,
            brief: Duration::from_millis(10),
            time_limit: None,
        }
    }
}
