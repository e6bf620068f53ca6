//! Gives each rank its part of a plan.
//!
//! DataFusion plans for as many partitions as all ranks have lanes. Where the plan partitions rows by a hash, ranks shuffle them; where it
//! brings partitions together, they gather them on the first rank; where a join collects its build side, all ranks receive it. What the plan
//! has in one partition runs on the first rank alone, and so does a part that the others cannot run, with all its inputs.
//!
//! Ranks run all parts at the same time, and rows stream between them. No rank waits in a circle: a join takes its whole build side before it
//! asks for probe rows, what sorts takes all its rows before it returns one, and who needs no more rows drops its input, which senders learn.

mod joins;
mod scans;
mod sinks;

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, Distribution, ExecutionPlan, ExecutionPlanProperties, Partitioning, ReplaceChildrenOptions,
};
use overspill::travel::GroupingSetsInputExec;
use overspill_distributed::planning::loses_window_properties;
use overspill_exchange::Rank;
use overspill_join::keys::KeyCodec;

use crate::exec::{AwayExec, RankBroadcastExec, RankGatherExec, RankShuffleExec, Way};

type Plan = Arc<dyn ExecutionPlan>;

/// The most rows that a limit in a message can have.
const LARGEST_FETCH: usize = u32::MAX as usize;

/// A part of a plan, for each rank.
struct Part {
    /// Whether all ranks have rows of it, or the first alone.
    is_spread: bool,
    plans: Vec<Plan>,
    /// Of a part that gathers rows in any order: what each rank gathers.
    gathers: Option<Vec<Plan>>,
}

/// What a plan is distributed among.
#[derive(Debug, Clone, Copy)]
pub struct Ranks {
    /// The number of ranks.
    pub ranks: usize,
    /// The partitions of each.
    pub lanes: usize,
    /// How rows travel. Exchanges are numbered from this number.
    pub way: Way,
}

impl Ranks {
    /// The plan of each rank; `None` if no rank but the first would have rows.
    ///
    /// # Errors
    /// DataFusion cannot put a node above its new inputs.
    pub fn distribute(mut self, plan: &Plan) -> Result<Option<Vec<Plan>>> {
        let part = self.node(plan, false)?;
        let part = if part.is_spread { self.gather(part, |input| one_partition(input, None)) } else { part };
        if part.are_others_idle() {
            return Ok(None);
        }
        let mut plans = part.plans;
        if plans[0].output_partitioning().partition_count() > 1 {
            plans[0] = Arc::new(CoalescePartitionsExec::new(Arc::clone(&plans[0])));
        }
        Ok(Some(plans))
    }

    /// Distributes a node with its inputs. `keeps_keys` says whether a node above relies on rows with equal keys being on one rank.
    fn node(&mut self, plan: &Plan, keeps_keys: bool) -> Result<Part> {
        if let Some(scan) = scans::dealt(plan, self.ranks)? {
            return Ok(Part { is_spread: true, plans: scan, gathers: None });
        }
        // A recursive query runs its second input again and again, which exchanges cannot.
        if plan.children().is_empty() || plan.is::<RecursiveQueryExec>() {
            return Ok(self.alone(plan));
        }
        let relies = relies_on_keys(plan, keeps_keys);
        let inputs = plan.children().into_iter().zip(relies).map(|(input, relies)| self.node(input, relies));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        if let Some(subqueries) = plan.downcast_ref::<ScalarSubqueryExec>() {
            return match self.subqueries(plan, subqueries, inputs)? {
                Some(part) => Ok(part),
                None => Ok(self.alone(plan)),
            };
        }
        if inputs.iter().all(|input| !input.is_spread) && !is_hash_repartition(plan) {
            return self.on_first(plan, inputs);
        }
        match self.spread(plan, inputs, keeps_keys)? {
            Some(part) => Ok(part),
            None => Ok(self.alone(plan)),
        }
    }

    /// A node over inputs of which some are spread; `None` if it must run on the first rank.
    fn spread(&mut self, plan: &Plan, mut inputs: Vec<Part>, keeps_keys: bool) -> Result<Option<Part>> {
        if !travels(plan) {
            return Ok(None);
        }
        if let Some(repartition) = plan.downcast_ref::<RepartitionExec>() {
            let Some(input) = inputs.pop() else { return Ok(None) };
            return self.repartition(repartition, input);
        }
        if let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() {
            let Some(input) = inputs.pop() else { return Ok(None) };
            return self.merge(plan, merge, input).map(Some);
        }
        if let Some(coalesce) = plan.downcast_ref::<CoalescePartitionsExec>() {
            let Some(input) = inputs.pop() else { return Ok(None) };
            let fetch = coalesce.fetch();
            let gathers = fetch.is_none().then(|| input.plans.clone());
            let gathered = self.gather(input, |input| one_partition(input, fetch));
            let part = self.on_first(plan, vec![gathered])?;
            return Ok(Some(Part { gathers, ..part }));
        }
        if plan.is::<UnionExec>() {
            return self.above(plan, inputs).map(Some);
        }
        if plan.is::<InterleaveExec>() {
            let are_spread = inputs.iter().all(|input| input.is_spread);
            return if are_spread { self.above(plan, inputs).map(Some) } else { Ok(None) };
        }
        if joins::is_join(plan) {
            return self.join(plan, inputs, keeps_keys);
        }
        // A node that is not known here may need all rows in one place.
        let requirements = plan.input_distribution_requirements().into_per_child();
        let needs_one = requirements.iter().any(|required| matches!(required, Distribution::SinglePartition));
        if inputs.len() != 1 || needs_one || !works_on_partitions(plan) {
            return Ok(None);
        }
        self.above(plan, inputs).map(Some)
    }

    /// A node that all ranks run, each over its own inputs.
    fn above(&self, plan: &Plan, inputs: Vec<Part>) -> Result<Part> {
        let plans = (0..self.ranks).map(|rank| {
            let inputs = inputs.iter().map(|input| Arc::clone(&input.plans[rank])).collect();
            replaced(plan, inputs)
        });
        Ok(Part { is_spread: true, plans: plans.collect::<Result<_>>()?, gathers: None })
    }

    /// A node that the first rank runs. The others send it rows, where there are exchanges below.
    fn on_first(&self, plan: &Plan, inputs: Vec<Part>) -> Result<Part> {
        let plans = (0..self.ranks).map(|rank| {
            let inputs: Vec<_> = inputs.iter().map(|input| Arc::clone(&input.plans[rank])).collect();
            if rank == 0 {
                return replaced(plan, inputs);
            }
            let sending = inputs.iter().flat_map(|input| match input.is::<AwayExec>() {
                true => input.children().into_iter().cloned().collect(),
                false => vec![Arc::clone(input)],
            });
            Ok(Arc::new(AwayExec::new(plan.schema(), sending.collect())) as Plan)
        });
        Ok(Part { is_spread: false, plans: plans.collect::<Result<_>>()?, gathers: None })
    }

    /// A part that the first rank runs with all its inputs.
    fn alone(&self, plan: &Plan) -> Part {
        let away = |rank: Rank| match rank {
            0 => Arc::clone(plan),
            _ => Arc::new(AwayExec::new(plan.schema(), vec![])) as Plan,
        };
        Part { is_spread: false, plans: (0..self.ranks).map(away).collect(), gathers: None }
    }

    fn next_way(&mut self) -> Way {
        let way = self.way;
        self.way.number += 1;
        way
    }

    /// Brings all rows to the first rank, from one partition of each.
    fn gather(&mut self, input: Part, one_partition: impl Fn(&Plan) -> Plan) -> Part {
        let way = self.next_way();
        let plans =
            input.plans.iter().enumerate().map(|(rank, input)| {
                Arc::new(RankGatherExec::new(one_partition(input), rank, self.ranks, way)) as Plan
            });
        Part { is_spread: false, plans: plans.collect(), gathers: None }
    }

    /// Brings all rows of a part to each rank, in one partition.
    fn broadcast(&mut self, input: Part) -> Vec<Plan> {
        let way = self.next_way();
        let plans = input.gathers.unwrap_or(input.plans);
        plans.into_iter().map(|input| Arc::new(RankBroadcastExec::new(input, way)) as Plan).collect()
    }

    fn repartition(&mut self, repartition: &RepartitionExec, input: Part) -> Result<Option<Part>> {
        let lanes = self.lanes;
        let Partitioning::Hash(keys, _) = repartition.partitioning() else {
            if repartition.preserve_order() || !matches!(repartition.partitioning(), Partitioning::RoundRobinBatch(_)) {
                return Ok(None);
            }
            let plans = input.plans.into_iter().map(|input| {
                Ok(Arc::new(RepartitionExec::try_new(input, Partitioning::RoundRobinBatch(lanes))?) as Plan)
            });
            return Ok(Some(Part { is_spread: true, plans: plans.collect::<Result<_>>()?, gathers: None }));
        };
        let schema = repartition.input().schema();
        let types = keys.iter().map(|key| key.data_type(&schema)).collect::<Result<Vec<DataType>>>()?;
        if repartition.preserve_order() || KeyCodec::try_new(&types, true).is_err() || keys.iter().any(is_subquery) {
            return Ok(None);
        }
        let way = self.next_way();
        let shuffle = |input| Arc::new(RankShuffleExec::new(input, keys.clone(), lanes, way)) as Plan;
        let plans = input.plans.into_iter().map(shuffle).collect();
        Ok(Some(Part { is_spread: true, plans, gathers: None }))
    }

    /// Merges the rows of each rank, and then those of all on the first.
    fn merge(&mut self, plan: &Plan, merge: &SortPreservingMergeExec, input: Part) -> Result<Part> {
        let gathered = self.gather(input, |input| merged(merge, input));
        self.on_first(plan, vec![gathered])
    }

    /// Subqueries in place of a value: each rank that has a part of the input needs the value. `None` if the first rank must run them.
    fn subqueries(&mut self, plan: &Plan, node: &ScalarSubqueryExec, mut inputs: Vec<Part>) -> Result<Option<Part>> {
        let input = inputs.remove(0);
        if !input.is_spread && input.are_others_idle() && inputs.iter().all(|subquery| !subquery.is_spread) {
            inputs.insert(0, input);
            return self.on_first(plan, inputs).map(Some);
        }
        if hides_subquery(node.input())? {
            return Ok(None);
        }
        let is_spread = input.is_spread;
        let mut all = vec![input];
        for subquery in inputs {
            let plans = self.broadcast(subquery);
            all.push(Part { is_spread: true, plans, gathers: None });
        }
        let part = self.above(plan, all)?;
        Ok(Some(Part { is_spread, ..part }))
    }
}

impl Part {
    /// Whether ranks but the first have nothing to do for it.
    fn are_others_idle(&self) -> bool {
        self.plans[1..].iter().all(|plan| plan.is::<AwayExec>() && plan.children().is_empty())
    }
}

/// For each input, whether this node, or one above it, relies on rows with equal keys being on one rank.
fn relies_on_keys(plan: &Plan, keeps_keys: bool) -> Vec<bool> {
    let moves_rows =
        plan.is::<RepartitionExec>() || plan.is::<CoalescePartitionsExec>() || plan.is::<SortPreservingMergeExec>();
    let requirements = plan.input_distribution_requirements().into_per_child();
    let relies = requirements.iter().map(|required| match required {
        _ if moves_rows => false,
        Distribution::SinglePartition => false,
        Distribution::UnspecifiedDistribution => keeps_keys || plan.is::<InterleaveExec>(),
        _ => true,
    });
    relies.collect()
}

fn replaced(plan: &Plan, inputs: Vec<Plan>) -> Result<Plan> {
    Arc::clone(plan).replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

fn one_partition(input: &Plan, fetch: Option<usize>) -> Plan {
    if input.output_partitioning().partition_count() == 1 && fetch.is_none() {
        return Arc::clone(input);
    }
    Arc::new(CoalescePartitionsExec::new(Arc::clone(input)).with_fetch(fetch))
}

/// A rank's part of a merge.
fn merged(merge: &SortPreservingMergeExec, input: &Plan) -> Plan {
    if input.output_partitioning().partition_count() == 1 {
        return Arc::clone(input);
    }
    let merged = SortPreservingMergeExec::new(merge.expr().clone(), Arc::clone(input));
    Arc::new(merged.with_fetch(merge.fetch()))
}

fn is_hash_repartition(plan: &Plan) -> bool {
    let repartition = plan.downcast_ref::<RepartitionExec>();
    repartition.is_some_and(|repartition| matches!(repartition.partitioning(), Partitioning::Hash(..)))
}

/// Whether a message holds all that a node is.
fn travels(plan: &Plan) -> bool {
    plan.fetch().is_none_or(|fetch| fetch <= LARGEST_FETCH) && !loses_window_properties(plan)
}

/// Whether a node treats each partition for itself, given what it requires of its input.
fn works_on_partitions(plan: &Plan) -> bool {
    plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<AggregateExec>()
        || plan.is::<SortExec>()
        || plan.is::<LocalLimitExec>()
        || plan.is::<WindowAggExec>()
        || plan.is::<BoundedWindowAggExec>()
        || plan.is::<UnnestExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<GroupingSetsInputExec>()
}

fn is_subquery(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.is::<ScalarSubqueryExpr>() || expr.children().into_iter().any(is_subquery)
}

/// Whether a node of Overspill's, or a scan of its file formats, has the value of a subquery in its expressions. As these travel in messages of
/// their own, they do not find the value.
fn hides_subquery(plan: &Plan) -> Result<bool> {
    let mut hides = false;
    plan.apply(|node| {
        // Another subquery has values of its own.
        if joins::is_join(node) || scans::is_of_overspill(node) {
            node.apply_expressions(&mut |expr| {
                hides |= is_subquery(expr);
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(hides)
}
