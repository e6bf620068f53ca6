//! Joins among ranks.

use std::sync::Arc;

use datafusion::common::{JoinType, Result};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode, SortMergeJoinExec, SymmetricHashJoinExec,
};
use datafusion::physical_plan::projection::ProjectionExec;
use overspill::{HybridJoinExec, ThetaJoinExec};
use overspill_distributed::planning::needs_all_probe_rows;
use overspill_exchange::Side;

use super::scans::is_scan;
use super::{Part, Plan, Ranks, is_hash_repartition};
use crate::exec::RankShuffleExec;
use crate::job::HeavyJoin;

/// Whether a node joins two inputs.
pub fn is_join(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<HybridJoinExec>()
        || plan.is::<ThetaJoinExec>()
        || plan.is::<HashJoinExec>()
        || plan.is::<NestedLoopJoinExec>()
        || plan.is::<CrossJoinExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<SymmetricHashJoinExec>()
}

/// Whether a join collects the rows of its left input.
fn collects_left(plan: &Plan) -> Option<bool> {
    if let Some(join) = plan.downcast_ref::<HybridJoinExec>() {
        return Some(join.partition_mode() == PartitionMode::CollectLeft);
    }
    (plan.is::<ThetaJoinExec>() || plan.is::<CrossJoinExec>()).then_some(true)
}

/// The sides of a join whose rows may go to all ranks: it returns none of them by themselves.
fn may_go_everywhere(join_type: JoinType) -> [bool; 2] {
    use JoinType::{Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi};
    match join_type {
        Inner => [true, true],
        Left | LeftSemi | LeftAnti | LeftMark => [false, true],
        Right | RightSemi | RightAnti | RightMark => [true, false],
        Full => [false, false],
    }
}

/// Whether heavy keys of a join are found out. Its output then has rows of a key on several ranks.
///
/// All ranks wait for the samples of all. No side may need rows of other ranks for its sample: these would wait in turn until this rank takes
/// more rows.
fn finds_heavy_keys(plan: &Plan) -> Option<[bool; 2]> {
    let join = plan.downcast_ref::<HybridJoinExec>()?;
    let has_sample = |side: &Plan| is_hash_repartition(side) && side.children().into_iter().all(has_rows_at_once);
    let may_go_everywhere = may_go_everywhere(join.join_type());
    let is_null_aware = join.planned().null_aware || join.has_null_aware_mark();
    let finds = !is_null_aware && may_go_everywhere.contains(&true);
    (finds && plan.children().into_iter().all(has_sample)).then_some(may_go_everywhere)
}

fn has_rows_at_once(plan: &Plan) -> bool {
    let passes = plan.is::<FilterExec>() || plan.is::<ProjectionExec>() || plan.is::<CooperativeExec>();
    is_scan(plan) || (passes && plan.children().into_iter().all(has_rows_at_once))
}

/// A shuffle that finds out heavy keys. `None` for what is none.
fn with_heavy_keys(plan: &Plan, heavy: (HeavyJoin, Side)) -> Option<Plan> {
    let (Some(shuffle), [input]) = (plan.downcast_ref::<RankShuffleExec>(), &plan.children()[..]) else { return None };
    let again = RankShuffleExec::new(Arc::clone(input), shuffle.keys().to_vec(), shuffle.lanes(), *shuffle.way());
    Some(Arc::new(again.with_heavy_keys(Some(heavy))))
}

impl Ranks {
    /// A join of which an input at least is spread; `None` if the first rank must run it. Rows with equal keys stay on one rank if `keeps_keys`.
    pub(super) fn join(&mut self, plan: &Plan, inputs: Vec<Part>, keeps_keys: bool) -> Result<Option<Part>> {
        let Ok([left, right]) = <[Part; 2]>::try_from(inputs) else { return Ok(None) };
        match collects_left(plan) {
            // Both are partitioned by the keys.
            Some(false) if left.is_spread && right.is_spread => {
                let sides = match finds_heavy_keys(plan).filter(|_| !keeps_keys) {
                    Some(may_go_everywhere) => self.finding_heavy_keys(left, right, may_go_everywhere),
                    None => vec![left, right],
                };
                self.above(plan, sides).map(Some)
            }
            // Each probe row is on one rank, which has all build rows.
            Some(true) if right.is_spread && !left.is_spread && !needs_all_probe_rows(plan) => {
                let left = Part { is_spread: true, plans: self.broadcast(left), gathers: None };
                self.above(plan, vec![left, right]).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The two shuffles of a join, which find out heavy keys together.
    fn finding_heavy_keys(&mut self, left: Part, right: Part, may_go_everywhere: [bool; 2]) -> Vec<Part> {
        let join = HeavyJoin { number: self.next_way().number, may_go_everywhere };
        let [left, right] = [(left, Side::Left), (right, Side::Right)].map(|(part, side)| {
            let found: Option<Vec<Plan>> = part.plans.iter().map(|plan| with_heavy_keys(plan, (join, side))).collect();
            (part, found)
        });
        let spread = |plans| Part { is_spread: true, plans, gathers: None };
        match (left, right) {
            ((_, Some(left)), (_, Some(right))) => vec![spread(left), spread(right)],
            ((left, _), (right, _)) => vec![left, right],
        }
    }
}
