//! Puts the input of each shared subplan below one of its readers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::physical_optimizer::PhysicalOptimizerRule;

use super::Node;
use crate::shared_subplan::SharedSubplanExec;

/// Puts the input of each shared subplan below the first of its readers in the plan. If other rules have left it a single reader, the input
/// takes its place.
///
/// It runs after all rules that change nodes: they would move filters and limits of the first reader into the input of all.
#[derive(Debug)]
pub(crate) struct SharedSubplans;

impl PhysicalOptimizerRule for SharedSubplans {
    fn optimize(&self, plan: Node, _: &ConfigOptions) -> Result<Node> {
        let readers = readers(&plan)?;
        if readers.is_empty() {
            return Ok(plan);
        }
        Placement { readers, placed: HashSet::new() }.place(plan)
    }

    fn name(&self) -> &str {
        "shared_subplans"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The number of readers of each subplan, in a plan and in the inputs that they share.
fn readers(plan: &Node) -> Result<HashMap<usize, usize>> {
    let mut readers = HashMap::new();
    let mut plans = vec![Arc::clone(plan)];
    while let Some(plan) = plans.pop() {
        plan.apply(|node| {
            if let Some(reader) = node.downcast_ref::<SharedSubplanExec>() {
                let count = readers.entry(reader.id()).or_insert(0);
                *count += 1;
                if *count == 1 {
                    plans.push(reader.shared_input());
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    Ok(readers)
}

struct Placement {
    /// By subplan.
    readers: HashMap<usize, usize>,
    /// Subplans whose input is in the plan.
    placed: HashSet<usize>,
}

impl Placement {
    fn place(&mut self, plan: Node) -> Result<Node> {
        let placed = plan.transform_down(|node| {
            let Some(reader) = node.downcast_ref::<SharedSubplanExec>() else { return Ok(Transformed::no(node)) };
            if !self.placed.insert(reader.id()) {
                return Ok(Transformed::no(node));
            }
            let input = self.place(reader.shared_input())?;
            let is_shared = self.readers.get(&reader.id()).is_some_and(|readers| *readers > 1);
            let node = if is_shared { Arc::new(reader.with_input(input)) } else { input };
            Ok(Transformed::new(node, true, TreeNodeRecursion::Jump))
        });
        placed.data()
    }
}
