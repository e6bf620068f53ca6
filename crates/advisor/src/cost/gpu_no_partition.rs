//! The no-partitioning hash join on the GPU (paper 2, section 5).
//!
//! ```text
//! build = max(transfer of the build side, rows * slots * (g / random writes + (1 - g) / random writes on the link))
//! probe = max(transfer of the probe side, the same with reads)
//! g     = share of memory requests with all slots in GPU memory
//! ```
//!
//! Build and probe have separate rates: random reads of GPU memory are 3.2 to 6 times as fast as writes (paper 1, section
//! 6.2.9).

use super::link::{self, Access, HybridTable, SECTOR_BYTES};
use super::{Site, launch};
use crate::join::Join;
use crate::machine::Gpu;
use crate::prediction::{Bound, Cost, LinkBytes, Refusal};

/// Kernel launches: one per side.
const LAUNCHES: f64 = 2.0;

pub(crate) fn gpu_no_partition(site: &Site<'_>) -> Result<Cost, Refusal> {
    let (gpu, join) = (site.gpu()?, site.join);
    let launch = launch(gpu)?;
    let table = HybridTable::new(join.table_bytes(), site.gpu_memory(gpu), join.build.key_bytes);
    site.check_cpu_memory("the hash table would, beyond GPU memory,", table.spilled())?;
    let mut cost = Cost::default();
    build(&mut cost, site, gpu, &table)?;
    let slots = slots_of_probe(join);
    let read = probe_bytes(gpu, join);
    let result = join.result_bytes();
    let transfer = link::seconds(&gpu.link, site.memory, read, result);
    cost.phase("probe", &with_transfer(transfer, join.probe.rows(), table.access(gpu, Access::Read, slots)?));
    cost.launches(LAUNCHES, launch);
    let uncached = 1.0 - table.cached_share();
    let written = join.build.rows() * join.accesses_of_hit() * uncached * SECTOR_BYTES;
    let looked_up = join.probe.rows() * slots * uncached * SECTOR_BYTES;
    cost.link_bytes = LinkBytes { to_gpu: join.build.bytes() + read + looked_up, to_cpu: written + result };
    Ok(cost)
}

/// Adds the GPU's build of a table.
pub(crate) fn build(cost: &mut Cost, site: &Site<'_>, gpu: &Gpu, table: &HybridTable) -> Result<(), Refusal> {
    let join = site.join;
    let transfer = link::seconds(&gpu.link, site.memory, join.build.bytes(), 0.0);
    let access = table.access(gpu, Access::Write, join.accesses_of_hit())?;
    cost.phase("build", &with_transfer(transfer, join.build.rows(), access));
    Ok(())
}

/// The average number of slots read per probe row.
pub(crate) fn slots_of_probe(join: &Join) -> f64 {
    let rate = join.match_rate();
    rate * join.accesses_of_hit() + (1.0 - rate) * join.accesses_of_miss()
}

/// Bytes of the probe side that cross the link.
pub(crate) fn probe_bytes(gpu: &Gpu, join: &Join) -> f64 {
    let probe = join.probe;
    link::probe_bytes(&gpu.link, probe.rows(), probe.tuple_bytes, probe.key_bytes, join.match_rate())
}

/// Accesses to both memories are sequential for a row; the transfer of rows overlaps with them.
fn with_transfer(transfer: f64, rows: f64, [near, far]: [(Bound, f64); 2]) -> [(Bound, f64); 2] {
    let bound = if near.1 > far.1 { near.0 } else { far.0 };
    [(Bound::Transfer, transfer), (bound, rows * (near.1 + far.1))]
}
