//! Makes operators that multiply rows yield to other tasks.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::unnest::UnnestExec;

/// Puts a [`CooperativeExec`] above cross joins, nested loop joins and unnesting.
///
/// DataFusion's own rule puts them above scans. That is enough if an operator reads about as many batches from its input as
/// it returns. These operators return many batches for each input batch. Their consumer never has to wait, so the task cannot
/// be cancelled meanwhile.
#[derive(Debug)]
pub struct YieldingOperators;

impl PhysicalOptimizerRule for YieldingOperators {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let multiplies = node.is::<CrossJoinExec>() || node.is::<NestedLoopJoinExec>() || node.is::<UnnestExec>();
            if multiplies {
                Ok(Transformed::yes(Arc::new(CooperativeExec::new(node)) as _))
            } else {
                Ok(Transformed::no(node))
            }
        })
        .map(|transformed| transformed.data)
    }

    fn name(&self) -> &str {
        "yielding_operators"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
