//! The physical optimizer rules that insert [`HybridJoinExec`](crate::HybridJoinExec),
//! [`ThetaJoinExec`](crate::ThetaJoinExec), [`FilterAggregateExec`](crate::FilterAggregateExec),
//! [`JoinAggregateExec`](crate::JoinAggregateExec), [`SpillingSortExec`](crate::SpillingSortExec) and
//! [`CountedWindowExec`](crate::CountedWindowExec) into plans.

mod filter_aggregate_fusion;
mod float_statistics;
mod grouping_sets_input;
mod hybrid_join_selection;
mod join_aggregate_fusion;
mod limited_memory_selection;
mod shared_build;
mod sort_merge_to_hash_join;
mod theta_join_selection;
mod yielding;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::config::OverspillConfig;

pub(crate) use filter_aggregate_fusion::filter_aggregate_fusion;
pub(crate) use float_statistics::{float_bounds, float_filters};
pub(crate) use grouping_sets_input::grouping_sets_input;
pub(crate) use hybrid_join_selection::hybrid_join_selection;
pub(crate) use join_aggregate_fusion::join_aggregate_fusion;
pub(crate) use limited_memory_selection::limited_memory_selection;
pub(crate) use shared_build::shared_build;
pub(crate) use sort_merge_to_hash_join::sort_merge_to_hash_join;
pub(crate) use theta_join_selection::theta_join_selection;
pub(crate) use yielding::yielding_operators;

/// A physical rule, shared by the sessions that use it.
pub(crate) type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Rewrites a physical plan, and keeps its schema.
type Rewrite = fn(Arc<dyn ExecutionPlan>, &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>>;

/// A rule without state.
#[derive(Debug)]
struct FunctionRule {
    name: &'static str,
    rewrite: Rewrite,
}

impl PhysicalOptimizerRule for FunctionRule {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        (self.rewrite)(plan, config)
    }

    fn name(&self) -> &str {
        self.name
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The rule with this name that rewrites plans by a function.
pub(crate) fn rule(name: &'static str, rewrite: Rewrite) -> Rule {
    Arc::new(FunctionRule { name, rewrite })
}

/// The settings of Overspill; `None` if it is switched off.
fn enabled(config: &ConfigOptions) -> Option<&OverspillConfig> {
    config.extensions.get::<OverspillConfig>().filter(|config| config.enabled)
}
