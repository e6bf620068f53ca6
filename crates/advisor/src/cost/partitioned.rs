//! GPU joins of partitions: `triton` (paper 1, section 5) and `cpu_partitioned` (paper 1, section 3.1).
//!
//! ```text
//! prefix sum           = key columns / read rate of the threads or / link, on the faster processor
//! first pass           = max(transfer of relations in and spilled partitions out, cycles of all rows) / efficiency
//! second pass and join = max(transfer of spilled partitions in and results out, work + transfer / 2)
//! ```
//!
//! Transfers take `max(in / read, out / write, (in + out) / both)`. While the second pass waits for the link, it occupies
//! half of the multiprocessors, and the join runs at half its speed (paper 1, section 5.2): hence `work + transfer / 2`.

use super::cpu::Processors;
use super::{Site, buffering_efficiency, launch, link};
use crate::join::Side;
use crate::machine::Gpu;
use crate::prediction::{Bound, Cost, LinkBytes, Refusal};
use crate::triton_traffic::{PrefixSumProcessor, TritonTraffic, triton_link_bytes};

/// Radix bits of a pass in GPU memory (paper 1, section 6.1).
const SECOND_PASS_BITS: f64 = 9.0;

/// The maximum number of radix bits of the first pass: the largest fanout that the paper measures for Hierarchical (paper 1,
/// section 6.2.6).
const MOST_FIRST_PASS_BITS: f64 = 11.0;

/// Tuples per warp. Flushing a buffer with fewer tuples does not keep a warp busy (paper 1, section 6.2.6).
pub(crate) const WARP: f64 = 32.0;

/// Copies of a pair of partitions in GPU memory: two pairs, each as read and as partitioned again (paper 1, section 5.1).
const PIPELINE_COPIES: f64 = 4.0;

/// The share of GPU memory for the pipeline of the second pass (paper 1, section 5.1: half of it).
const PIPELINE_SHARE: f64 = 0.5;

/// Cycles of a multiprocessor per row and pass; those of the last pass include the join. In the first pass, instructions are
/// the bound below 25 multiprocessors of the V100, and the link above, at 4.2 G rows/s: 25 * 1.53 GHz / 4.2 G = 9. The join
/// phase also has 9 left beside its memory traffic (paper 1, sections 6.2.3 and 6.2.12).
const CYCLES: f64 = 9.0;

/// Kernels per pair of partitions: prefix sum, partitioner, scheduler, join (paper 1, section 6.2.3).
const LAUNCHES_OF_PAIR: f64 = 4.0;

/// Steps of the search for the share to bring ahead. Each step keeps two thirds of the interval.
const SEARCH_STEPS: usize = 48;

/// Kernels of the first pass: one per side.
const LAUNCHES_OF_FIRST_PASS: f64 = 2.0;

/// The parameters of a partitioned join.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Radix bits of the first pass.
    first_bits: f64,
    /// Passes in GPU memory before the join.
    passes: f64,
    /// Bytes of GPU memory for caching partitions.
    cache: f64,
    /// The efficiency of the GPU's partitioner in the first pass.
    efficiency: f64,
}

impl Plan {
    /// Returns the cost of the cheapest plan.
    ///
    /// Build partitions are finally to fit a scratchpad. The second pass uses 9 bits and the first pass the others. The first
    /// pass uses more bits if two pairs of its partitions would not fit half of the GPU memory, or if smaller pairs leave
    /// enough memory for the cache to pay off.
    fn cheapest(site: &Site<'_>, gpu: &Gpu, cost_of: impl Fn(&Self) -> Result<Cost, Refusal>) -> Result<Cost, Refusal> {
        let join = site.join;
        let gpu_memory = site.gpu_memory(gpu);
        let scratchpad = gpu.scratchpad_bytes as f64;
        let bits = (join.build.bytes() / scratchpad).log2().ceil().max(0.0);
        let pipeline = |first_bits: f64| PIPELINE_COPIES * join.data_bytes() / first_bits.exp2();
        let least = (bits - SECOND_PASS_BITS).clamp(0.0, MOST_FIRST_PASS_BITS);
        let tuple = join.build.tuple_bytes.max(join.probe.tuple_bytes) as f64;
        let mut cheapest = Err(Refusal::GpuMemory {
            what: "two pairs of partitions, twice each, in half of what the join may have,",
            needed: pipeline(MOST_FIRST_PASS_BITS) / PIPELINE_SHARE,
            limit: gpu_memory,
        });
        let mut first_bits = least;
        while first_bits <= MOST_FIRST_PASS_BITS {
            if pipeline(first_bits) <= gpu_memory * PIPELINE_SHARE {
                let doublings = (first_bits.exp2() * WARP * tuple / scratchpad).log2();
                let cost = cost_of(&Self {
                    first_bits,
                    passes: ((bits - first_bits) / SECOND_PASS_BITS).ceil().max(1.0),
                    cache: gpu_memory - pipeline(first_bits),
                    efficiency: buffering_efficiency(doublings),
                })?;
                let is_cheaper = cheapest.as_ref().map_or(true, |cheapest: &Cost| cost.seconds() < cheapest.seconds());
                if is_cheaper {
                    cheapest = Ok(cost);
                }
            }
            first_bits += 1.0;
        }
        cheapest
    }

    fn pairs(&self) -> f64 {
        self.first_bits.exp2()
    }

    /// Seconds of the GPU for a side in its own memory: its passes, and the join, which reads the rows.
    fn work(&self, gpu: &Gpu, side: &Side) -> f64 {
        self.passes * pass(gpu, side) + side.bytes() / gpu.bandwidth
    }
}

/// Seconds of a pass over a side in GPU memory. A prefix sum reads the keys, and the partitioner reads and writes the rows. The
/// cost of instructions is added.
pub(crate) fn pass(gpu: &Gpu, side: &Side) -> f64 {
    (side.key_column() + 2.0 * side.bytes()) / gpu.bandwidth + cycles(gpu, side.rows())
}

/// Seconds of a pass's instructions.
fn cycles(gpu: &Gpu, rows: f64) -> f64 {
    rows * CYCLES / (f64::from(gpu.multiprocessors) * gpu.clock)
}

/// Seconds of transfers in the second pass, and of the concurrent work.
fn pipelined(transfer: f64, work: f64) -> [(Bound, f64); 2] {
    [(Bound::Transfer, transfer), (Bound::GpuWork, work + transfer / 2.0)]
}

/// The processor that counts the keys faster, and its time in seconds.
pub(crate) fn prefix_sum(site: &Site<'_>, gpu: &Gpu, key_bytes: f64) -> (PrefixSumProcessor, f64) {
    let on_gpu = link::seconds(&gpu.link, site.memory, key_bytes, 0.0);
    let on_cpu = Processors::new(&site.cpu, site.threads).histogram(key_bytes);
    if on_gpu < on_cpu { (PrefixSumProcessor::Gpu, on_gpu) } else { (PrefixSumProcessor::Cpu, on_cpu) }
}

pub(crate) fn triton(site: &Site<'_>) -> Result<Cost, Refusal> {
    let gpu = site.gpu()?;
    let launch = launch(gpu)?;
    Plan::cheapest(site, gpu, |plan| triton_by(site, gpu, launch, plan))
}

fn triton_by(site: &Site<'_>, gpu: &Gpu, launch: f64, plan: &Plan) -> Result<Cost, Refusal> {
    let join = site.join;
    let data = join.data_bytes();
    let cached_share = if data > 0.0 { (plan.cache / data).min(1.0) } else { 1.0 };
    let key_bytes = join.build.key_column() + join.probe.key_column();
    let (processor, prefix_sum) = prefix_sum(site, gpu, key_bytes);
    let traffic: TritonTraffic = triton_link_bytes(
        join.build.bytes(),
        join.probe.bytes(),
        key_bytes,
        cached_share,
        processor,
        join.result_bytes(),
    );
    site.check_cpu_memory("partitions that GPU memory does not cache would", traffic.spilled)?;
    let transfer = |to_gpu, to_cpu| link::seconds(&gpu.link, site.memory, to_gpu, to_cpu);
    let mut cost = Cost::default();
    let bound = match processor {
        PrefixSumProcessor::Cpu => Bound::CpuMemory,
        PrefixSumProcessor::Gpu => Bound::Transfer,
    };
    cost.phase("prefix sum", &[(bound, prefix_sum)]);
    let first = [
        (Bound::Transfer, transfer(traffic.base_relations, traffic.spilled)),
        (Bound::GpuWork, cycles(gpu, join.rows())),
    ];
    cost.phase("first pass", &first.map(|(bound, seconds)| (bound, seconds / plan.efficiency)));
    let work = plan.work(gpu, &join.build) + plan.work(gpu, &join.probe);
    let second = pipelined(transfer(traffic.spilled_again, traffic.results), work);
    cost.phase("second pass and join", &second);
    cost.launches(LAUNCHES_OF_FIRST_PASS + plan.pairs() * LAUNCHES_OF_PAIR, launch);
    cost.link_bytes = traffic.link_bytes();
    Ok(cost)
}

/// The cost of `cpu_partitioned`. The CPU partitions the build side, then the probe side. Meanwhile the GPU gets part of the
/// build side and partitions it again: as much as GPU memory caches and as saves time. Then the GPU gets the rest, and joins.
pub(crate) fn cpu_partitioned(site: &Site<'_>) -> Result<Cost, Refusal> {
    let gpu = site.gpu()?;
    let launch = launch(gpu)?;
    site.check_cpu_memory("partitions of both sides would", site.join.data_bytes())?;
    Plan::cheapest(site, gpu, |plan| {
        let build = site.join.build.bytes();
        let most = if build > 0.0 { (plan.cache / build).min(1.0) } else { 1.0 };
        Ok(with_best_share(most, |share| cpu_partitioned_by(site, gpu, plan, launch, share)))
    })
}

/// The cheapest cost over shares from 0 to `most`. The second phase grows with the share, and the third shrinks.
fn with_best_share(most: f64, cost_of: impl Fn(f64) -> Cost) -> Cost {
    let [all, none] = [cost_of(most), cost_of(0.0)];
    // The CPU takes longer than the concurrent work, as is usual.
    if all.phases[1].seconds <= none.phases[1].seconds {
        return all;
    }
    // Time is convex in the share, so a ternary search converges to its minimum.
    let (mut from, mut to) = (0.0, most);
    for _ in 0..SEARCH_STEPS {
        let [one, other] = [from + (to - from) / 3.0, to - (to - from) / 3.0];
        if cost_of(one).seconds() < cost_of(other).seconds() {
            to = other;
        } else {
            from = one;
        }
    }
    [cost_of(to), none].into_iter().fold(all, |best, cost| if cost.seconds() < best.seconds() { cost } else { best })
}

/// The cost with a share of the build side brought ahead.
fn cpu_partitioned_by(site: &Site<'_>, gpu: &Gpu, plan: &Plan, launch: f64, share_ahead: f64) -> Cost {
    let join = site.join;
    let processors = Processors::new(&site.cpu, site.threads);
    let efficiency = processors.efficiency(plan.first_bits);
    let on_gpu =
        |bytes: f64, results: f64, work: f64| pipelined(link::seconds(&gpu.link, site.memory, bytes, results), work);
    let ahead = join.build.bytes() * share_ahead;
    let build_work = plan.work(gpu, &join.build);
    let mut cost = Cost::default();
    cost.phase("partition build side", &processors.partition_side(&join.build, efficiency));
    // CPU memory serves the processors, which read and write each byte, and the link.
    let memory = (join.probe.key_column() + 2.0 * join.probe.bytes() + ahead) / site.memory;
    let [moved, worked] = processors.partition_side(&join.probe, efficiency);
    let [transferred, partitioned] = on_gpu(ahead, 0.0, build_work * share_ahead);
    cost.phase("partition probe side", &[moved, worked, transferred, partitioned, (Bound::CpuMemory, memory)]);
    let rest = build_work * (1.0 - share_ahead) + plan.work(gpu, &join.probe);
    cost.phase("second pass and join", &on_gpu(join.data_bytes() - ahead, join.result_bytes(), rest));
    cost.launches(plan.pairs() * LAUNCHES_OF_PAIR, launch);
    cost.link_bytes = LinkBytes { to_gpu: join.data_bytes(), to_cpu: join.result_bytes() };
    cost
}
