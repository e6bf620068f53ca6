//! Replaces DataFusion's hash joins by [`HybridJoinExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::joins::HashJoinExec;

use super::Node;
use super::join_order::{JoinedRows, RED_ZONE, STACK};
use crate::config::OverspillConfig;
use crate::hybrid_join::HybridJoinExec;

/// Replaces every [`HashJoinExec`] that [`HybridJoinExec::supports`] by a [`HybridJoinExec`] that knows the rows that are estimated of it.
///
/// The rule runs between `join_selection` and the rules that enforce distribution and order: a hybrid join does not keep the
/// order of its probe side, and only later rules can add the sorts that are then needed.
#[derive(Debug)]
pub struct HybridJoinSelection;

impl PhysicalOptimizerRule for HybridJoinSelection {
    fn optimize(&self, plan: Node, config: &ConfigOptions) -> Result<Node> {
        let overspill = config.extensions.get::<OverspillConfig>().filter(|overspill| overspill.enabled);
        let Some(overspill) = overspill else { return Ok(plan) };
        select(&plan, &JoinedRows::of(&plan, config, overspill))
    }

    fn name(&self) -> &str {
        "hybrid_join_selection"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The plan with hybrid joins, those below others first.
fn select(node: &Node, joined: &JoinedRows) -> Result<Node> {
    let children = node.children().into_iter();
    let children = children.map(|child| stacker::maybe_grow(RED_ZONE, STACK, || select(child, joined)));
    let replaced = replace_children_if_necessary(Arc::clone(node), children.collect::<Result<Vec<_>>>()?)?;
    match replaced.downcast_ref::<HashJoinExec>() {
        Some(join) if HybridJoinExec::supports(join) => {
            Ok(Arc::new(HybridJoinExec::try_new(join)?.with_estimate(joined.get(node))))
        }
        _ => Ok(replaced),
    }
}
