//! Orders joins anew by what they are estimated to cost.

mod conditions;
mod equalities;
mod estimates;
mod joined_rows;
mod rebuild;
mod region;

use std::sync::{Arc, LazyLock};

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use overspill_machine::topology::Cpu;
use overspill_planner::{HashJoinCost, Mode, Options, Region, Relation, order};

use super::Node;
use crate::config::OverspillConfig;
use crate::planning::PlanningSession;

use estimates::Estimates;
pub(super) use joined_rows::JoinedRows;
use rebuild::Rebuild;
use region::JoinRegion;

/// Bytes of stack that a node of a deep plan needs, and those that are added where there are fewer.
pub(super) const RED_ZONE: usize = 128 << 10;
pub(super) const STACK: usize = 2 << 20;

/// The assumed rows of an input of a region that is ordered at random, if they are not known.
const UNKNOWN_ROWS: f64 = 1000.0;

/// Orders the hash joins of each region of a plan as [`overspill_planner`] says, if `overspill.join_order` is not `as_written`.
///
/// A region is a tree of hash joins, with nothing between them but projections of columns ([`JoinRegion`]). The rule runs after
/// `join_selection`: the order as written has the build sides that DataFusion chose, and stays if no other is clearly cheaper, or if the rows
/// of an input are not known. New orders have the planner's build sides.
///
/// Inputs may also be joined by equalities of columns that follow from those of the query ([`equalities`]): with a = b and b = c, by a = c. Of
/// the equalities of a join, those that follow from others are not evaluated.
///
/// How many rows pass a filter is counted in samples of its table ([`Samples`](crate::table_samples::Samples)), if that is of Parquet files on this machine.
///
/// A condition that may fail, such as one with a division or a cast to a narrower type, is evaluated on no row that the written order would
/// have dropped before.
#[derive(Debug)]
pub struct JoinOrderRule;

impl PhysicalOptimizerRule for JoinOrderRule {
    fn optimize(&self, plan: Node, config: &ConfigOptions) -> Result<Node> {
        let Some(overspill) = config.extensions.get::<OverspillConfig>().filter(|overspill| overspill.enabled) else {
            return Ok(plan);
        };
        let mode = match Mode::from(overspill.join_order) {
            Mode::AsWritten => return Ok(plan),
            // The host's setting against changes of join orders.
            Mode::Auto if !config.optimizer.join_reordering => return Ok(plan),
            mode => mode,
        };
        let memory = overspill.join_memory_limit;
        let memory =
            PlanningSession::memory_limit(config).into_iter().chain(Some(memory).filter(|limit| *limit > 0)).min();
        let caches = &*CACHES;
        let cost = HashJoinCost { memory: memory.map_or(f64::INFINITY, |bytes| bytes as f64), ..*caches };
        let options = Options { mode, ..Options::default() };
        let estimates = Estimates::new(config, overspill);
        Ordering { config, options, cost, estimates }.plan(&plan)
    }

    fn name(&self) -> &str {
        "join_order"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The costs of joins with the caches of this machine.
static CACHES: LazyLock<HashJoinCost> = LazyLock::new(|| {
    let (cpu, usual) = (Cpu::of_this_machine(), HashJoinCost::default());
    let bytes = |cache: Option<u64>, usual: f64| cache.map_or(usual, |bytes| bytes as f64);
    let core_cache = bytes(cpu.private_cache(), usual.core_cache);
    HashJoinCost { core_cache, shared_cache: bytes(cpu.shared_cache(), usual.shared_cache), ..usual }
});

/// A plan whose joins are ordered.
struct Ordering<'a> {
    config: &'a ConfigOptions,
    options: Options,
    cost: HashJoinCost,
    estimates: Estimates,
}

impl Ordering<'_> {
    /// The plan with its regions ordered, those inside of others' inputs first.
    fn plan(&mut self, plan: &Node) -> Result<Node> {
        let region = JoinRegion::of(plan);
        let inputs = match &region {
            Some(region) => region.leaves.clone(),
            None => plan.children().into_iter().map(Arc::clone).collect(),
        };
        let ordered = inputs.iter().map(|input| stacker::maybe_grow(RED_ZONE, STACK, || self.plan(input)));
        let ordered = ordered.collect::<Result<Vec<_>>>()?;
        match region {
            Some(region) => self.region(plan, &region, ordered),
            None => replace_children_if_necessary(Arc::clone(plan), ordered),
        }
    }

    /// A region over inputs that are ordered.
    fn region(&mut self, written: &Node, region: &JoinRegion, leaves: Vec<Node>) -> Result<Node> {
        let as_written = |leaves: Vec<Node>| region::with_leaves(written, &mut leaves.into_iter());
        if leaves.iter().any(|leaf| leaf.boundedness().is_unbounded()) {
            return as_written(leaves);
        }
        let Some(described) = described(region, &leaves, &self.estimates, self.options.mode != Mode::Auto) else {
            return as_written(leaves);
        };
        let plan = match order(&described, &self.options, &self.cost) {
            Ok(plan) => plan,
            Err(error) => {
                tracing::debug!("the joins keep their order: {error}");
                return as_written(leaves);
            }
        };
        tracing::debug!("order of {} relations: {}", leaves.len(), plan.reason);
        let ordered = if plan.reason.keeps_written() {
            None
        } else {
            Rebuild::new(region, &leaves, &described, &plan, self.config).region(&written.schema())?
        };
        let ordered = match ordered {
            Some(ordered) => ordered,
            None => as_written(leaves)?,
        };
        if let Some(last) = plan.estimates.last() {
            self.estimates.remember(&ordered, last.rows);
        }
        Ok(ordered)
    }
}

/// What the planner has to know of a region over `leaves`. `None` if the rows of one are not known, and not to be assumed either.
fn described(region: &JoinRegion, leaves: &[Node], estimates: &Estimates, assumes_rows: bool) -> Option<Region> {
    let relations = leaves.iter().map(|leaf| {
        let rows = estimates.rows(leaf).or(assumes_rows.then_some(UNKNOWN_ROWS))?;
        Some(Relation {
            rows,
            bounds: estimates.bounds(leaf),
            unfiltered: estimates.unfiltered_rows(leaf).unwrap_or(f64::INFINITY),
            width: estimates::row_width(&leaf.schema()),
        })
    });
    let relations = relations.collect::<Option<Vec<_>>>()?;
    let predicates = region.conditions.iter().zip(region.classes());
    let predicates = predicates.map(|(condition, class)| condition.predicate(leaves, &relations, estimates, class));
    Some(Region { predicates: predicates.collect(), relations, root: region.root.clone() })
}
