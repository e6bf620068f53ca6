//! Replaces DataFusion's hash joins by [`HybridJoinExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;

use crate::config::OverspillConfig;
use crate::hybrid_join::HybridJoinExec;

/// Replaces every [`HashJoinExec`] that [`HybridJoinExec::supports`] by a [`HybridJoinExec`].
///
/// The rule runs between `join_selection` and the rules that enforce distribution and order: a hybrid join does not keep the
/// order of its probe side, and only later rules can add the sorts that are then needed.
#[derive(Debug, Default)]
pub struct HybridJoinSelection {}

impl HybridJoinSelection {
    /// The rule; it has no state.
    pub fn new() -> Self {
        Self {}
    }
}

impl PhysicalOptimizerRule for HybridJoinSelection {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if !config.extensions.get::<OverspillConfig>().is_some_and(|config| config.enabled) {
            return Ok(plan);
        }
        plan.transform_up(|node| match node.downcast_ref::<HashJoinExec>() {
            Some(join) if HybridJoinExec::supports(join) => {
                Ok(Transformed::yes(Arc::new(HybridJoinExec::try_new(join)?) as _))
            }
            _ => Ok(Transformed::no(node)),
        })
        .map(|transformed| transformed.data)
    }

    fn name(&self) -> &str {
        "hybrid_join_selection"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
