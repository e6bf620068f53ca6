//! Hides from aggregates with grouping sets those input properties that do not hold for their output.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

use super::Node;
use crate::config::OverspillConfig;
use crate::grouping_sets::GroupingSetsInputExec;

/// Inserts a node below each aggregate with several grouping sets. The node declares no properties of its columns.
pub(crate) fn grouping_sets_input(node: &Node, _: &ConfigOptions, _: &OverspillConfig) -> Result<Option<Node>> {
    let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
    // Aggregates in other modes merge partial groups. Those have a column that names the grouping set.
    let takes_rows =
        matches!(aggregate.mode(), AggregateMode::Partial | AggregateMode::Single | AggregateMode::SinglePartitioned);
    if !takes_rows || aggregate.group_expr().groups().len() < 2 {
        return Ok(None);
    }
    let input = Arc::new(GroupingSetsInputExec::new(Arc::clone(aggregate.input())));
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(node).replace_children(vec![input], options).map(Some)
}
