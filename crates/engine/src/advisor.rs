//! What `auto` chooses for the probe side of a join in memory: the cost model of [`overspill_advisor`], asked about
//! this machine.
//!
//! What `overspill machine --measure` has found is loaded once, before the first join of the process; on a machine that
//! was not measured nothing is partitioned in memory. A table that fits the last-level caches is left as it is.

use std::sync::LazyLock;

use overspill_advisor::{Cpu, ProbeRows};
pub use overspill_join::hybrid::measure_row_work;
use overspill_join::radix::ProbeRegions;
use overspill_machine::measure::Measurements;
use overspill_machine::topology::Topology;

use crate::config::Strategy;

/// What a probe row costs this machine, if it was measured before the first join of the process.
fn probe_rows(threads: usize) -> Option<ProbeRows> {
    static MEASURED: LazyLock<Option<Cpu>> = LazyLock::new(|| {
        // Its GPUs do not matter, and looking for them would open them.
        let topology = Topology::without_gpus();
        let measured = Measurements::load_for_processors(&Measurements::path()?, &topology)?;
        Cpu::measured(&topology.cpu, &measured)
    });
    MEASURED.as_ref().map(|cpu| ProbeRows::new(cpu, threads))
}

/// Of which tables a join of so many threads partitions its probe rows, and for how much of a table at a time; `None`
/// if of none.
pub fn probe_regions(strategy: Strategy, threads: usize) -> Option<ProbeRegions> {
    let beyond = match strategy {
        Strategy::Radix => 0,
        Strategy::Auto => probe_rows(threads)?.partitioned_beyond?,
        Strategy::NoPartition | Strategy::Hybrid => return None,
    };
    Some(ProbeRegions::of_this_machine(usize::try_from(beyond).unwrap_or(usize::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_that_are_fixed_need_no_advice() {
        assert_eq!(probe_regions(Strategy::NoPartition, 2), None);
        assert_eq!(probe_regions(Strategy::Hybrid, 2), None);
        assert_eq!(probe_regions(Strategy::Radix, 2).unwrap().beyond, 0);
    }
}
