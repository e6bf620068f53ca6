//! Estimated rows of the joins of a plan.

use std::collections::HashMap;

use datafusion::common::config::ConfigOptions;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::joins::HashJoinExec;
use overspill_planner::{Mode, Options, order};

use super::super::Node;
use super::estimates::{Estimates, address};
use super::region::{JoinRegion, is_inside};
use super::{CACHES, RED_ZONE, STACK, described};
use crate::config::OverspillConfig;
use crate::hybrid_join::EstimatedRows;

/// What is estimated of the hash joins of a plan.
pub(in crate::optimizer) struct JoinedRows {
    estimates: Estimates,
    /// By the address of a join.
    joins: HashMap<usize, EstimatedRows>,
}

impl JoinedRows {
    /// Estimates all joins of a plan: those of a region as the planner does, others as DataFusion does. Nothing is estimated if
    /// `overspill.join_order` is `as_written`.
    pub fn of(plan: &Node, config: &ConfigOptions, overspill: &OverspillConfig) -> Self {
        let mut joined = Self { estimates: Estimates::new(config, overspill), joins: HashMap::new() };
        if Mode::from(overspill.join_order) != Mode::AsWritten {
            joined.add(plan);
        }
        joined
    }

    /// The rows of a join of the plan, if they are known.
    pub fn get(&self, join: &Node) -> Option<EstimatedRows> {
        self.joins.get(&address(join)).copied()
    }

    /// Adds the joins of a plan, those inside of a region's inputs first.
    fn add(&mut self, plan: &Node) {
        let region = JoinRegion::of(plan);
        let inputs = match &region {
            Some(region) => region.leaves.clone(),
            None => plan.children().into_iter().cloned().collect(),
        };
        for input in &inputs {
            stacker::maybe_grow(RED_ZONE, STACK, || self.add(input));
        }
        match region {
            Some(region) => self.add_region(plan, &region),
            None => self.add_other(plan),
        }
    }

    fn add_region(&mut self, root: &Node, region: &JoinRegion) {
        if region.leaves.iter().any(|leaf| leaf.boundedness().is_unbounded()) {
            return;
        }
        let Some(described) = described(region, &region.leaves, &self.estimates, false) else { return };
        let options = Options { mode: Mode::AsWritten, ..Options::default() };
        let Ok(plan) = order(&described, &options, &*CACHES) else { return };
        let mut leaves = described.relations.iter().map(|relation| relation.rows);
        let mut joins = plan.estimates.iter().map(|estimate| estimate.rows);
        if let Some(rows) = self.add_inside(root, &mut leaves, &mut joins) {
            self.estimates.remember(root, rows);
        }
    }

    /// Adds the joins of a region, and returns the rows of its root. The leaves' rows are in the order of the leaves, those of joins in post-order.
    fn add_inside(
        &mut self,
        node: &Node,
        leaves: &mut dyn Iterator<Item = f64>,
        joins: &mut dyn Iterator<Item = f64>,
    ) -> Option<f64> {
        if !is_inside(node) {
            return leaves.next();
        }
        let Some(join) = node.downcast_ref::<HashJoinExec>() else {
            return self.add_inside(node.children()[0], leaves, joins);
        };
        let build = self.add_inside(join.left(), leaves, joins)?;
        let probe = self.add_inside(join.right(), leaves, joins)?;
        let output = joins.next()?;
        self.joins.insert(address(node), EstimatedRows { build, probe, output });
        Some(output)
    }

    /// Adds a join that the planner does not know.
    fn add_other(&mut self, node: &Node) {
        let Some(join) = node.downcast_ref::<HashJoinExec>() else { return };
        let rows = |node| self.estimates.rows(node);
        if let (Some(build), Some(probe), Some(output)) = (rows(join.left()), rows(join.right()), rows(node)) {
            self.joins.insert(address(node), EstimatedRows { build, probe, output });
        }
    }
}
