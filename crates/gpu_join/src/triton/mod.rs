//! The Triton join (paper 1, section 5): a radix-partitioned hash join of a GPU whose state may be larger than GPU memory.
//!
//! A first pass partitions each side by the top bits of the hash. It reads CPU memory and writes an even mix of pages in GPU
//! memory and pages in CPU memory, so that later passes keep the link busy all the time (section 5.3). Bytes cross the link in
//! order, in full lines, and at most three times; only scratchpad memory is read at random.
//!
//! The first pass over the build side runs once it has been read. The first pass over a probe chunk runs when the chunk is
//! joined.

mod relation;

use std::time::Instant;

use overspill_advisor::PrefixSumProcessor;
use overspill_kernels::JoinSide;
use overspill_machine::Result;
use overspill_machine::memory::Mapping;
use overspill_machine::transfer::PooledBuffer;

pub(crate) use relation::PartitionedRelation;
use relation::{BaseRelation, RelationMemory};

use crate::device::{AggregatedPairs, BuildColumns, DeviceCount, DeviceRequest, ProbeColumns, ProbeKeys, Resident};
use crate::radix::{FirstPass, RadixBuild, RadixChunk, RadixPlan, RadixTable};

/// Partitions a build side. If the CPU counts the keys, it uses `threads` threads.
pub(crate) fn build(request: &DeviceRequest, columns: &BuildColumns, threads: usize) -> Result<RadixTable> {
    let plan = RadixPlan::new(&request.gpu, columns.rows, 1)?;
    let (relation, resident) = first_pass(request, &plan, &columns.side(&request.gpu)?, &columns.keys, threads)?;
    Ok(RadixBuild::new(plan, relation, Some(resident)).into())
}

/// Partitions a probe chunk, whose units have at most `most_pairs` pairs. Its keys are not needed afterwards. If the CPU counts
/// them, it uses `threads` threads.
pub(crate) fn start(
    table: &RadixTable,
    request: &DeviceRequest,
    keys: &ProbeKeys,
    most_pairs: u64,
    aggregated: Option<AggregatedPairs>,
    threads: usize,
) -> Result<RadixChunk> {
    let in_place = ProbeColumns::default();
    let side = keys.side(0..keys.rows, &in_place)?;
    let (relation, resident) = first_pass(request, &table.build.plan, &side, keys.keys.buffer(), threads)?;
    request.observer.add(DeviceCount::StateBytes, relation.bytes());
    request.observer.add(DeviceCount::SpilledBytes, relation.spilled_bytes());
    Ok(RadixChunk::new(table, relation, most_pairs, aggregated, Some(resident)))
}

/// Runs the first pass over a side and reserves GPU memory for the result. The side's keys are the first keys in `keys`.
fn first_pass(
    request: &DeviceRequest,
    plan: &RadixPlan,
    side: &JoinSide<'_>,
    keys: &PooledBuffer,
    threads: usize,
) -> Result<(PartitionedRelation, Resident)> {
    let gpu = &request.gpu;
    let mut base = BaseRelation::new(gpu, side, plan.first, request.tuning.first_pass)?;
    // Count before getting the turn: meanwhile the GPU runs other joins.
    let is_counted = request.prefix_sum == PrefixSumProcessor::Cpu && base.count(gpu, keys, threads)?;
    let resident = cache(request, base.tuples(), plan)?;
    // The driver takes long to map memory: not in the turn either.
    let begin = Instant::now();
    let memory = RelationMemory::new(gpu, &base, resident.bytes)?;
    request.observer.add(DeviceCount::MappingTime, begin.elapsed().as_nanos() as u64);
    let mut bench = request.turn()?;
    bench.drop_pipeline();
    let relation = PartitionedRelation::new(gpu, &bench.stream, base, memory)?;
    request.observer.add(DeviceCount::LinkBytes, relation.link_bytes);
    request.observer.add(DeviceCount::CpuPrefixSums, is_counted.into());
    Ok((relation, resident))
}

/// Reserves GPU memory for the partitions of `tuples` tuples: at most half of the memory left, so that the other side gets
/// some, and at most the share of the partitions that is worth caching (section 6.2.7).
fn cache(request: &DeviceRequest, tuples: u64, plan: &RadixPlan) -> Result<Resident> {
    let gpu = &request.gpu;
    let all = PartitionedRelation::bytes_of(tuples, plan.first);
    let room = gpu.resident_left() / 2;
    gpu.reserve_resident(match gpu.mapping {
        Mapping::Contiguous => ((all as f64 * request.cached_share) as u64).min(room),
        // All or nothing, as two arrays do not form one address range.
        Mapping::TwoArrays if all <= room && request.cached_share > 0.0 => all,
        Mapping::TwoArrays => 0,
    })
}
