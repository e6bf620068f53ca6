//! Finds pairs in hash tables in CPU memory.

mod regions;
mod table;

use std::sync::Arc;

pub(super) use regions::MAX_FANOUT_BITS;
use regions::RegionFinder;
use table::TableFinder;

use super::aggregation::AggregatingStream;
use super::build_side::BuildSide;
use super::pairs::{LeftOver, PairFinder};
use super::plan::JoinPlan;
use crate::memory::UnitMemory;

/// Creates the finder for a build side in memory. It finds pairs on the accelerator that has taken the build side; else by
/// regions of the hash table, if `may_partition` and it pays; else in the hash table. `memory` pays for collected rows, and
/// `aggregating` receives the aggregates of pairs that an accelerator aggregates.
pub fn pair_finder(
    plan: &Arc<JoinPlan>,
    build: &Arc<BuildSide>,
    memory: &Arc<UnitMemory>,
    aggregating: Option<AggregatingStream>,
    may_partition: bool,
) -> Box<dyn PairFinder> {
    let table = Box::new(TableFinder::new(plan, build));
    if let Some(accelerated) = build.accelerated() {
        return Arc::clone(accelerated).finder(&plan.spec, memory, aggregating, table);
    }
    let regions = if may_partition { RegionFinder::for_join(plan, build, memory) } else { None };
    match regions {
        Some(regions) => Box::new(LeftOver::new(Box::new(regions), table)),
        None => table,
    }
}
