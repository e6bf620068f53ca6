//! The Triton join (paper 1, section 5): a radix-partitioned hash join of a GPU whose state may be larger than GPU memory.
//!
//! A first pass partitions each side by the top bits of the hash, reading CPU memory and writing pages of which some lie in GPU
//! memory and the others in CPU memory, evenly mixed, so that later passes keep the link busy all the time (section 5.3).
//! Bytes cross the link in order, in full lines, and at most three times; nothing is read at random but scratchpad memory.
//!
//! The build side takes its first pass when it has been read, each chunk of the probe side when it is joined.

mod relation;

use overspill_machine::Result;
use overspill_machine::memory::Mapping;

use relation::FirstPassPlan;
pub(crate) use relation::PartitionedRelation;

use crate::device::{AggregatedPairs, BuildColumns, DeviceCount, DeviceRequest, ProbeKeys, Resident};
use crate::gpu_radix::{FirstPass, RadixBuild, RadixChunk, RadixPlan};

/// Partitions a build side.
pub(crate) fn build(request: &DeviceRequest, columns: &BuildColumns) -> Result<RadixBuild<PartitionedRelation>> {
    let gpu = &request.gpu;
    let plan = RadixPlan::new(gpu, columns.rows)?;
    let resident = cache(request, columns.rows, &plan)?;
    let mut bench = gpu.turn();
    bench.drop_pipeline();
    let pass = first_pass(request, &plan, &resident);
    let relation = PartitionedRelation::new(gpu, &bench.stream, &columns.side(gpu)?, pass)?;
    request.observer.add(DeviceCount::LinkBytes, relation.link_bytes);
    Ok(RadixBuild::new(plan, relation, Some(resident)))
}

/// Partitions a chunk of the probe side, whose pairs of a unit are at most so many. Its keys are not needed afterwards.
pub(crate) fn start(
    build: &RadixBuild<PartitionedRelation>,
    request: &DeviceRequest,
    keys: &ProbeKeys,
    most_pairs: u64,
    aggregated: Option<AggregatedPairs>,
) -> Result<RadixChunk<PartitionedRelation>> {
    let (gpu, plan) = (&request.gpu, build.plan);
    let resident = cache(request, keys.rows, &plan)?;
    let mut bench = gpu.turn();
    bench.drop_pipeline();
    let pass = first_pass(request, &plan, &resident);
    let relation = PartitionedRelation::new(gpu, &bench.stream, &keys.side(0..keys.rows)?, pass)?;
    request.observer.add(DeviceCount::LinkBytes, relation.link_bytes);
    request.observer.add(DeviceCount::StateBytes, relation.bytes());
    request.observer.add(DeviceCount::SpilledBytes, relation.spilled_bytes());
    Ok(RadixChunk::new(build, relation, most_pairs, aggregated, Some(resident)))
}

/// Bytes of CPU memory that so many rows of either side take once they are partitioned, if none of them is cached.
pub(crate) fn host_bytes(rows: usize) -> usize {
    PartitionedRelation::host_bytes(rows)
}

fn first_pass(request: &DeviceRequest, plan: &RadixPlan, resident: &Resident) -> FirstPassPlan {
    FirstPassPlan { radix: plan.first, cached: resident.bytes(), algorithm: request.tuning.first_pass }
}

/// Sets GPU memory aside for the partitions of so many tuples: at most a part of what is left, so that the other side has some,
/// and at most the share of them that is worth caching (section 6.2.7).
fn cache(request: &DeviceRequest, tuples: u64, plan: &RadixPlan) -> Result<Resident> {
    let gpu = &request.gpu;
    let all = PartitionedRelation::bytes_of(tuples, plan.first);
    let room = gpu.resident_left() / 2;
    gpu.reserve_resident(match gpu.mapping() {
        Mapping::Contiguous => ((all as f64 * request.cached_share) as u64).min(room),
        // All or nothing, as two arrays have no common addresses.
        Mapping::TwoArrays if all <= room && request.cached_share > 0.0 => all,
        Mapping::TwoArrays => 0,
    })
}
