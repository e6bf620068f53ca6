//! Hides from aggregates with grouping sets those input properties that do not hold for their output.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

use super::enabled;
use crate::grouping_sets::GroupingSetsInputExec;

/// Inserts a node below each aggregate with several grouping sets. The node declares no properties of its columns.
pub(crate) fn grouping_sets_input(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    if enabled(config).is_none() {
        return Ok(plan);
    }
    plan.transform_up(|node| {
        let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(Transformed::no(node)) };
        // Aggregates in other modes merge partial groups. Those have a column that names the grouping set.
        let takes_rows = matches!(
            aggregate.mode(),
            AggregateMode::Partial | AggregateMode::Single | AggregateMode::SinglePartitioned
        );
        if !takes_rows || aggregate.group_expr().groups().len() < 2 {
            return Ok(Transformed::no(node));
        }
        let input = Arc::new(GroupingSetsInputExec::new(Arc::clone(aggregate.input())));
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        node.replace_children(vec![input], options).map(Transformed::yes)
    })
    .data()
}
