//! The strategies of the CPU.
//!
//! The seconds per row of `row` bytes, over all threads together, for data beyond the caches:
//!
//! ```text
//! lookup    = max(1 / random reads, latency / (misses * threads), lookup work / threads, row / read)
//! insert    = the same with 2 / random reads: a line comes and goes
//! partition = row / copied                     or  partition work / threads
//! radix     = max(row / copied + row / read,       (partition work + lookup work) / threads)
//! ```
//!
//! Threads are the join's. A few threads do not reach the random read rate of memory: each has a limited number of misses
//! outstanding, as many as when all processors read, and at least 10. Lookups access memory for the share of the table that
//! the last-level caches do not hold.

use overspill_machine::measure::RowWork;
use serde::{Deserialize, Serialize};

use super::{Site, buffering_efficiency, longest};
use crate::join::Side;
use crate::machine::Cpu;
use crate::prediction::{Bound, Cost, Refusal};

/// Bytes that `radix` moves per probe row: its key and the required columns.
const ROW_BYTES: f64 = 16.0;

/// The minimum number of cache misses that a thread has outstanding.
const MISSES: f64 = 10.0;

/// Partitioning is chosen only if it takes at most this share of the time without: it takes memory, and is given up if
/// columns have nulls.
pub(crate) const ADVANTAGE: f64 = 0.9;

/// Memory accesses per random write: the line is read and written back.
const ACCESSES_OF_WRITE: f64 = 2.0;

/// The costs of a 16-byte probe row on a machine's processors when the hash table is far larger than the caches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProbeRows {
    /// Seconds per probe row that is looked up without partitioning, over all processors.
    pub no_partition: f64,
    /// Seconds per probe row that is partitioned first.
    pub radix: f64,
    /// Probe rows are partitioned if the table is larger than this number of bytes, the size of the last-level caches. `None`
    /// if they are never partitioned.
    pub partitioned_beyond: Option<u64>,
}

impl ProbeRows {
    /// The costs for joins with `threads` threads.
    pub fn new(cpu: &Cpu, threads: usize) -> Self {
        let processors = Processors::new(cpu, threads);
        let no_partition = longest(&processors.lookups(ROW_BYTES, f64::INFINITY).map(|(_, seconds)| seconds));
        let radix = processors.partitioned_row(ROW_BYTES, Partitioning { passes: 1.0, efficiency: 1.0 });
        // False if a rate is missing.
        let is_better = radix.total() < no_partition * ADVANTAGE && no_partition.is_finite();
        Self { no_partition, radix: radix.total(), partitioned_beyond: is_better.then_some(cpu.last_level_cache) }
    }
}

/// The threads of a join on a machine's processors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Processors<'a> {
    cpu: &'a Cpu,
    threads: f64,
}

/// The partitioning of a side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Partitioning {
    /// The number of passes over all rows.
    pub(crate) passes: f64,
    /// The efficiency of the partitioner's instructions at this fanout.
    pub(crate) efficiency: f64,
}

/// Seconds per row to partition and then join it, each with its bound.
struct PartitionedRow {
    partition: (Bound, f64),
    join: (Bound, f64),
}

impl PartitionedRow {
    fn total(&self) -> f64 {
        self.partition.1 + self.join.1
    }
}

impl<'a> Processors<'a> {
    pub(crate) fn new(cpu: &'a Cpu, threads: usize) -> Self {
        let processors = cpu.threads.max(1) as f64;
        Self { cpu, threads: (threads.max(1) as f64).min(processors) }
    }

    /// Seconds per random read of memory.
    fn random_read(&self) -> f64 {
        self.waiting().max(1.0 / self.cpu.random_reads)
    }

    /// Seconds per random write of memory.
    fn random_write(&self) -> f64 {
        self.waiting().max(self.memory_of_write())
    }

    /// Seconds per cache miss, with as many misses outstanding as the threads have.
    fn waiting(&self) -> f64 {
        let latency = self.cpu.latency * 1e-9;
        let misses = (self.cpu.random_reads * latency / self.cpu.threads.max(1) as f64).max(MISSES);
        latency / (misses * self.threads)
    }

    fn memory_of_write(&self) -> f64 {
        ACCESSES_OF_WRITE / self.cpu.random_reads
    }

    /// The share of a table that exceeds the last-level caches.
    fn uncached(&self, table_bytes: f64) -> f64 {
        let cached = self.cpu.last_level_cache as f64;
        if table_bytes > cached { 1.0 - cached / table_bytes } else { 0.0 }
    }

    /// The concurrent costs of a lookup in a table of `table_bytes` bytes that all threads share.
    pub(crate) fn lookups(&self, row_bytes: f64, table_bytes: f64) -> [(Bound, f64); 3] {
        self.accesses(row_bytes, table_bytes, self.random_read())
    }

    /// As `lookups`, for an insert.
    pub(crate) fn inserts(&self, row_bytes: f64, table_bytes: f64) -> [(Bound, f64); 3] {
        self.accesses(row_bytes, table_bytes, self.random_write())
    }

    fn accesses(&self, row_bytes: f64, table_bytes: f64, random: f64) -> [(Bound, f64); 3] {
        let own = self.cpu.row_work.lookup;
        let fits_core = table_bytes <= self.cpu.core_cache as f64;
        let work = if fits_core { own } else { self.cpu.shared_lookup.unwrap_or(own) };
        [
            (Bound::CpuRandomAccess, self.uncached(table_bytes) * random),
            (Bound::CpuWork, work / self.threads),
            (Bound::CpuMemory, row_bytes / self.cpu.read),
        ]
    }

    /// Seconds of CPU memory, for either processor, to read a row in order and look it up in a table.
    pub(crate) fn memory_of_lookup(&self, row_bytes: f64, table_bytes: f64) -> f64 {
        row_bytes / self.cpu.read + self.uncached(table_bytes) / self.cpu.random_reads
    }

    /// As `memory_of_lookup`, for an insert.
    pub(crate) fn memory_of_insert(&self, row_bytes: f64, table_bytes: f64) -> f64 {
        row_bytes / self.cpu.read + self.uncached(table_bytes) * self.memory_of_write()
    }

    /// Partitions that fit a core's cache. If the buffers of that many partitions would not fit the core's share of the last
    /// level, partitions that fit this share; two passes if these would not fit either (paper 1, section 6.2.1, the Xeon).
    pub(crate) fn partitioning(&self, build_bytes: f64) -> Partitioning {
        let own = self.cpu.core_cache as f64;
        let share = own.max(self.cpu.last_level_cache as f64 / self.cpu.cores.max(1) as f64);
        let most = (share / self.cpu.cache_line as f64).log2().floor().max(0.0);
        let wanted = (build_bytes / own).log2().ceil().max(0.0);
        let (bits, passes) = if wanted <= most || build_bytes / most.exp2() <= share {
            (wanted.min(most), 1.0)
        } else {
            (wanted / 2.0, 2.0)
        };
        Partitioning { passes, efficiency: self.efficiency(bits) }
    }

    /// The efficiency of partitioning by `bits` bits, with a buffer of one cache line per partition in a core's cache.
    pub(crate) fn efficiency(&self, bits: f64) -> f64 {
        buffering_efficiency((bits.exp2() * self.cpu.cache_line as f64 / self.cpu.core_cache as f64).log2())
    }

    fn partitioned_row(&self, row_bytes: f64, Partitioning { passes, efficiency }: Partitioning) -> PartitionedRow {
        let RowWork { partition, lookup } = self.cpu.row_work;
        let moved = [passes * row_bytes / self.cpu.copy, row_bytes / self.cpu.read];
        let worked = [passes * partition / efficiency / self.threads, lookup / self.threads];
        let (bound, [partition, join]) = if moved[0] + moved[1] > worked[0] + worked[1] {
            (Bound::CpuMemory, moved)
        } else {
            (Bound::CpuWork, worked)
        };
        PartitionedRow { partition: (bound, partition), join: (bound, join) }
    }

    /// Seconds to partition a side once after its histogram. Results are written to other memory.
    pub(crate) fn partition_side(&self, side: &Side, efficiency: f64) -> [(Bound, f64); 2] {
        let histogram = self.histogram(side.key_column());
        let work = side.rows() * self.cpu.row_work.partition / efficiency / self.threads;
        [(Bound::CpuMemory, histogram + side.bytes() / self.cpu.copy), (Bound::CpuWork, histogram + work)]
    }

    /// Seconds to count the keys of a column by partition, which is the time to read it (paper 1, section 6.2.8).
    pub(crate) fn histogram(&self, column_bytes: f64) -> f64 {
        column_bytes / self.read()
    }

    /// Bytes per second that the threads read in order. Each thread reads what its misses allow, or its share of the total
    /// rate if that is more.
    fn read(&self) -> f64 {
        let alone = self.cpu.cache_line as f64 / (self.waiting() * self.threads);
        let share = self.cpu.read / self.cpu.threads.max(1) as f64;
        self.cpu.read.min(self.threads * alone.max(share))
    }
}

pub(crate) fn no_partition(site: &Site<'_>) -> Result<Cost, Refusal> {
    let join = site.join;
    site.check_cpu_memory("the hash table would", join.table_bytes())?;
    let processors = Processors::new(&site.cpu, site.threads);
    let mut cost = Cost::default();
    shared_table(&mut cost, site, &processors, join.table_bytes());
    Ok(cost)
}

/// Build and probe of a shared table of `table_bytes` bytes.
fn shared_table(cost: &mut Cost, site: &Site<'_>, processors: &Processors<'_>, table_bytes: f64) {
    let all = |rows: f64, parts: [(Bound, f64); 3]| parts.map(|(bound, seconds)| (bound, rows * seconds));
    let [build, probe] = [site.join.build, site.join.probe];
    cost.phase("build", &all(build.rows(), processors.inserts(build.tuple_bytes as f64, table_bytes)));
    cost.phase("probe", &all(probe.rows(), processors.lookups(probe.tuple_bytes as f64, table_bytes)));
}

pub(crate) fn radix(site: &Site<'_>) -> Result<Cost, Refusal> {
    let join = site.join;
    site.check_cpu_memory("the hash table would", join.table_bytes())?;
    let processors = Processors::new(&site.cpu, site.threads);
    let partitioning = processors.partitioning(join.build.bytes());
    let mut cost = Cost::default();
    let sides = [join.build, join.probe];
    let rows = sides.map(|side| processors.partitioned_row(side.tuple_bytes as f64, partitioning));
    let both = |of: fn(&PartitionedRow) -> (Bound, f64)| {
        let [build, probe] = [0, 1].map(|side| (of(&rows[side]).0, of(&rows[side]).1 * sides[side].rows()));
        let bound = if build.1 > probe.1 { build.0 } else { probe.0 };
        [(bound, build.1 + probe.1)]
    };
    cost.phase("partition", &both(|row| row.partition));
    cost.phase("join", &both(|row| row.join));
    Ok(cost)
}

/// The cost of `hybrid`. It is never refused, as it spills. The model does not include disks.
pub(crate) fn hybrid(site: &Site<'_>) -> Result<Cost, Refusal> {
    let join = site.join;
    // Each thread has its own table.
    let own_tables = Cpu { shared_lookup: None, ..site.cpu.clone() };
    let processors = Processors::new(&own_tables, site.threads);
    let partition = |side: &Side| {
        let moved = side.bytes() / own_tables.copy;
        let worked = side.rows() * own_tables.row_work.partition / processors.threads;
        [(Bound::CpuMemory, moved), (Bound::CpuWork, worked)]
    };
    let mut cost = Cost::default();
    cost.phase("partition build side", &partition(&join.build));
    cost.phase("partition probe side", &partition(&join.probe));
    let fits_cores = join.table_bytes() / processors.threads <= own_tables.core_cache as f64;
    shared_table(&mut cost, site, &processors, if fits_cores { 0.0 } else { join.table_bytes() });
    Ok(cost)
}
