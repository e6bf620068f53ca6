//! Lets DataFusion push filters down only where it finds their columns.

mod named_columns;

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::joins::HashJoinExec;

use super::Node;
use crate::config::OverspillConfig;
use crate::hybrid_join::named_once;

use named_columns::NamedColumnsExec;

/// DataFusion's rule that pushes filters down, kept from columns that it would mistake for others.
///
/// The rule looks the columns of a filter up by name in each input. Of several columns with one name it takes the first, and its join takes
/// a column of the other side of a semi join for the key of that name. Rows are then dropped by another column's values. While the rule
/// runs, each node with such columns is therefore the input of a [`NamedColumnsExec`], which lets no filter of them pass.
/// [`HybridJoinExec`](crate::HybridJoinExec) itself finds columns by their position.
#[derive(Debug)]
pub(crate) struct FilterPushdownByName(pub Arc<dyn PhysicalOptimizerRule + Send + Sync>);

impl PhysicalOptimizerRule for FilterPushdownByName {
    fn optimize(&self, plan: Node, config: &ConfigOptions) -> Result<Node> {
        let is_enabled = config.extensions.get::<OverspillConfig>().is_some_and(|overspill| overspill.enabled);
        if !is_enabled || !has_mistakable_columns(&plan)? {
            return self.0.optimize(plan, config);
        }
        let guarded = plan.transform_up(|node| {
            let mistakable = mistakable_columns(&node);
            if mistakable.is_empty() {
                return Ok(Transformed::no(node));
            }
            let columns = 0..node.schema().fields().len();
            let named = columns.filter(|column| !mistakable.contains(column)).collect();
            Ok(Transformed::yes(Arc::new(NamedColumnsExec::new(node, named)) as _))
        });
        let pushed = self.0.optimize(guarded.data()?, config)?;
        let bare = pushed.transform_up(|node| match node.downcast_ref::<NamedColumnsExec>() {
            Some(guard) => Ok(Transformed::yes(Arc::clone(guard.input()))),
            None => Ok(Transformed::no(node)),
        });
        bare.data()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

fn has_mistakable_columns(plan: &Node) -> Result<bool> {
    let mut found = false;
    plan.apply(|node| {
        found |= !mistakable_columns(node).is_empty();
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// The columns of a node that the rule would mistake for others below it.
fn mistakable_columns(node: &Node) -> HashSet<usize> {
    let schema = node.schema();
    let named = named_once(&schema);
    let other = other_side(node);
    let is_mistakable = |name: &str| {
        !named.contains_key(name) || other.as_ref().is_some_and(|other| other.column_with_name(name).is_some())
    };
    (0..schema.fields().len()).filter(|column| is_mistakable(schema.field(*column).name())).collect()
}

/// The columns of a semi join's side that it does not give, if the join is DataFusion's.
fn other_side(node: &Node) -> Option<Arc<Schema>> {
    let join = node.downcast_ref::<HashJoinExec>()?;
    match join.join_type() {
        JoinType::LeftSemi => Some(join.right().schema()),
        JoinType::RightSemi => Some(join.left().schema()),
        _ => None,
    }
}
