//! What a rank does by itself: partition its rows, and join what arrives.
//!
//! A GPU partitions as in paper 1, and joins as in paper 4, section 3.3: a table of hash values and row numbers, in which keys
//! are looked up twice, to count pairs and to note them. Processors do as in `no_partition`, each rank with its share of the
//! machine.

use crate::cost::cpu::Processors;
use crate::cost::partitioned::{WARP, pass};
use crate::cost::{buffering_efficiency, launch, longest};
use crate::join::Side;
use crate::machine::{Cpu, Gpu, Machine};
use crate::prediction::{Bound, Refusal};
use crate::repartitioned_join::{RankSide, RepartitionedJoin, ShufflePhase};

/// Bytes of an entry of the hash table: a hash value and a row number of 4 bytes each (paper 4, section 3.3).
const ENTRY: f64 = 8.0;

/// Entries of the hash table per row (paper 4, section 3.3: 50 % occupancy).
const ENTRIES_PER_ROW: f64 = 2.0;

/// Bytes of a pair of row numbers, of 4 bytes each.
const PAIR: f64 = 8.0;

/// How often a GPU looks a key up: to count pairs, and to note them (paper 4, section 3.3).
const LOOKUPS: f64 = 2.0;

/// The share of random accesses of the local join that take as long as `gpu.random_reads` and `gpu.random_writes` say; caches
/// serve the others. Fitted, so that figure 9's run without compression takes 831 - 648 ms for what is not the all-to-all.
const RANDOM_SHARE: f64 = 0.43;

/// Kernels of a partition of a side: the histogram, the prefix sum and the scatter (paper 4, section 3.1).
const PARTITION_LAUNCHES: f64 = 3.0;

/// A rank of a cluster.
#[derive(Debug)]
pub(crate) enum Rank<'a> {
    /// A GPU of its own.
    Gpu(&'a Gpu),
    /// A share of a machine's processors and their memory, the number of threads, and bytes that it partitions in a second.
    Cpu(Cpu, usize, Option<f64>),
}

impl<'a> Rank<'a> {
    /// A rank of a join on nodes that are such machines. Each has a GPU as the machine's, if that has one, or its share of the
    /// processors.
    pub(crate) fn new(machine: &'a Machine, join: &RepartitionedJoin) -> Self {
        match &machine.gpu {
            Some(gpu) => Self::Gpu(gpu),
            None => {
                let network = machine.network.as_ref();
                let of_machine = network.and_then(|network| network.ranks_per_machine);
                let ranks = f64::from(of_machine.unwrap_or(join.ranks_on_node()).max(1));
                let cpu = share(&machine.cpu.with_data(join.rank_bytes() * ranks), ranks);
                let threads = cpu.threads;
                Self::Cpu(cpu, threads, network.and_then(|network| network.partition))
            }
        }
    }

    /// Seconds to partition both sides.
    pub(crate) fn partition(&self, join: &RepartitionedJoin, partitions: u32) -> Result<(Bound, f64), Refusal> {
        let sides = [&join.build, &join.probe];
        match self {
            Self::Gpu(gpu) => {
                let seconds: f64 = sides.map(|side| gpu_partition(gpu, side, partitions)).iter().sum();
                let launches = sides.len() as f64 * PARTITION_LAUNCHES * launch(gpu)?;
                Ok((Bound::GpuWork, seconds + launches))
            }
            Self::Cpu(_, _, Some(rate)) => Ok((Bound::CpuWork, join.rank_bytes() / rate)),
            Self::Cpu(cpu, threads, None) => {
                let processors = Processors::new(cpu, *threads);
                let efficiency = processors.efficiency(f64::from(partitions).log2());
                let parts = sides.map(|side| longest_part(&processors.partition_side(&by_rows(side), efficiency)));
                let bound = if parts[0].1 > parts[1].1 { parts[0].0 } else { parts[1].0 };
                Ok((bound, parts[0].1 + parts[1].1))
            }
        }
    }

    /// The local join, and the result written.
    pub(crate) fn join(&self, join: &RepartitionedJoin) -> Result<[ShufflePhase; 2], Refusal> {
        let [joined, written] = match self {
            Self::Gpu(gpu) => gpu_join(gpu, join)?,
            Self::Cpu(cpu, threads, _) => cpu_join(&Processors::new(cpu, *threads), cpu, join),
        };
        let result = join.matches() * join.result_row();
        Ok([("local join", joined, join.rank_bytes()), ("materialize", written, result)]
            .map(|(name, (bound, seconds), bytes)| ShufflePhase { name, seconds, bytes, bound }))
    }

    /// Refuses a join that needs more memory than a rank has: both sides before and after the shuffle, and then the larger of
    /// the partitions of a side and of the table with the result.
    pub(crate) fn check_memory(&self, join: &RepartitionedJoin) -> Result<(), Refusal> {
        let sides = 2.0 * join.rank_bytes();
        let table = join.build.rows as f64 * ENTRIES_PER_ROW * ENTRY;
        let result = join.matches() * (join.result_row() + PAIR);
        let needed = sides + (table + result).max(join.build.bytes()).max(join.probe.bytes());
        match self {
            Self::Gpu(gpu) if needed > gpu.memory_bytes as f64 => Err(Refusal::GpuMemory {
                what: "both sides before and after the shuffle, with a hash table and the result,",
                needed,
                limit: gpu.memory_bytes as f64,
            }),
            Self::Cpu(Cpu { memory_bytes: Some(limit), .. }, _, _) if needed > *limit as f64 => {
                Err(Refusal::CpuMemory {
                    what: "both sides before and after the shuffle, with a hash table and the result, would",
                    needed,
                    limit: *limit as f64,
                })
            }
            _ => Ok(()),
        }
    }
}

/// The share of `ranks` equal ranks in processors and their memory. A rank has a thread at least; if there are fewer threads
/// than ranks, each does its work the slower.
fn share(cpu: &Cpu, ranks: f64) -> Cpu {
    let threads = (cpu.threads.max(1) as f64 / ranks).max(1.0).floor();
    let crowding = (ranks / cpu.threads.max(1) as f64).max(1.0);
    let mut own = cpu.clone();
    own.threads = threads as usize;
    own.cores = (cpu.cores as f64 / ranks).max(1.0) as usize;
    own.last_level_cache = (cpu.last_level_cache as f64 / ranks) as u64;
    own.memory_bytes = cpu.memory_bytes.map(|bytes| (bytes as f64 / ranks) as u64);
    own.read /= ranks;
    own.copy /= ranks;
    own.random_reads /= ranks;
    own.row_work.partition *= crowding;
    own.row_work.lookup *= crowding;
    own.shared_lookup = cpu.shared_lookup.map(|seconds| seconds * crowding);
    own
}

fn by_rows(side: &RankSide) -> Side {
    Side { rows: side.rows, tuple_bytes: side.row_bytes(), key_bytes: side.key_bytes() }
}

fn gpu_partition(gpu: &Gpu, side: &RankSide, partitions: u32) -> f64 {
    let row = side.row_bytes().max(1) as f64;
    let doublings = (f64::from(partitions) * WARP * row / gpu.scratchpad_bytes as f64).log2();
    pass(gpu, &by_rows(side)) / buffering_efficiency(doublings)
}

/// Seconds to join, and to write the result.
fn gpu_join(gpu: &Gpu, join: &RepartitionedJoin) -> Result<[(Bound, f64); 2], Refusal> {
    let writes = gpu.random_writes.ok_or(Refusal::NotMeasured { figure: "how fast the GPU writes at random" })?;
    let (build, probe) = (by_rows(&join.build), by_rows(&join.probe));
    let matches = join.matches();
    // An entry, and the key of the build row behind it where the hash values are equal.
    let reads = LOOKUPS * (probe.rows as f64 + matches);
    let random = RANDOM_SHARE * (build.rows as f64 / writes + reads / gpu.random_reads);
    let keys = build.rows as f64 * build.key_bytes as f64 + LOOKUPS * probe.rows as f64 * probe.key_bytes as f64;
    let joined = random + (keys + matches * PAIR) / gpu.bandwidth;
    // Build rows of pairs lie anywhere, probe rows in their order. The key is one of the probe side.
    let payloads = join.build.columns.len().saturating_sub(1) as f64;
    let gathered = RANDOM_SHARE * matches * payloads / gpu.random_reads;
    let moved = matches * (PAIR + probe.tuple_bytes as f64 + join.result_row());
    let launch = launch(gpu)?;
    let written = gathered + moved / gpu.bandwidth;
    Ok([(Bound::GpuRandomAccess, joined + launch * (1.0 + LOOKUPS)), (Bound::GpuWork, written + launch)])
}

fn cpu_join(processors: &Processors<'_>, cpu: &Cpu, join: &RepartitionedJoin) -> [(Bound, f64); 2] {
    let (build, probe) = (by_rows(&join.build), by_rows(&join.probe));
    let table = build.rows as f64 * ENTRIES_PER_ROW * ENTRY;
    let (inserts, insert) = longest_part(&processors.inserts(build.tuple_bytes as f64, table));
    let (lookups, lookup) = longest_part(&processors.lookups(probe.tuple_bytes as f64, table));
    let seconds = [build.rows as f64 * insert, probe.rows as f64 * lookup];
    let bound = if seconds[0] > seconds[1] { inserts } else { lookups };
    let written = join.matches() * join.result_row() / cpu.copy;
    [(bound, seconds[0] + seconds[1]), (Bound::CpuMemory, written)]
}

/// The longest of concurrent parts.
fn longest_part(parts: &[(Bound, f64)]) -> (Bound, f64) {
    let seconds = longest(&parts.iter().map(|(_, seconds)| *seconds).collect::<Vec<_>>());
    let bound = parts.iter().find(|(_, part)| *part >= seconds).map_or(Bound::CpuWork, |(bound, _)| *bound);
    (bound, seconds)
}
