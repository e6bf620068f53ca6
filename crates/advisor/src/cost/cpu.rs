//! The strategies of the CPU.
//!
//! A row of so many bytes takes all threads together, in seconds, beyond the caches:
//!
//! ```text
//! lookup    = max(1 / random reads, latency / (misses * threads), lookup work / threads, row / read)
//! insert    = the same with 2 / random reads: a line comes and goes
//! partition = row / copied                     or  partition work / threads
//! radix     = max(row / copied + row / read,       (partition work + lookup work) / threads)
//! ```
//!
//! Threads are those of the join, of which few do not get all the random reads that the memories give: each has its
//! misses outstanding at once, as many as were outstanding when all processors read, 10 at least. Lookups go to memory
//! for the share of the table that the last-level caches do not hold.

use overspill_machine::measure::RowWork;
use serde::{Deserialize, Serialize};

use super::{Site, buffering_efficiency, longest};
use crate::join::Side;
use crate::machine::Cpu;
use crate::prediction::{Bound, Cost, Refusal};

/// The bytes that `radix` moves of a probe row: its key, and the columns that are needed.
const ROW_BYTES: f64 = 16.0;

/// Cache misses that a thread has outstanding at once, at least.
const MISSES: f64 = 10.0;

/// Partitioning must promise so much less to be chosen: it takes memory, and is given up where columns have nulls.
pub(crate) const ADVANTAGE: f64 = 0.9;

/// Memory accesses of a random write: the line is read, and written back.
const ACCESSES_OF_WRITE: f64 = 2.0;

/// What a probe row of 16 bytes costs the processors of a machine when the hash table is far larger than the caches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ProbeRows {
    /// Seconds of a probe row that looks into the table as it comes, of all processors together.
    pub no_partition: f64,
    /// The same of one that is partitioned first.
    pub radix: f64,
    /// Probe rows are partitioned if the table has more bytes, those of the last-level caches; `None` if they never
    /// are.
    pub partitioned_beyond: Option<u64>,
}

impl ProbeRows {
    /// For joins of so many threads.
    pub fn new(cpu: &Cpu, threads: usize) -> Self {
        let processors = Processors::new(cpu, threads);
        let no_partition = longest(&processors.lookups(ROW_BYTES, f64::INFINITY).map(|(_, seconds)| seconds));
        let radix = processors.partitioned_row(ROW_BYTES, Partitioning { passes: 1.0, efficiency: 1.0 });
        // Not so if a rate is missing.
        let is_better = radix.total() < no_partition * ADVANTAGE && no_partition.is_finite();
        Self { no_partition, radix: radix.total(), partitioned_beyond: is_better.then_some(cpu.last_level_cache) }
    }
}

/// The threads of a join on the processors of a machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Processors<'a> {
    cpu: &'a Cpu,
    threads: f64,
}

/// How a side is partitioned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Partitioning {
    /// Over all rows.
    pub(crate) passes: f64,
    /// Of the partitioner's instructions, at this fanout.
    pub(crate) efficiency: f64,
}

/// Seconds of a row that is partitioned and then joined, and what they are spent for.
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

    /// Seconds of a read at a random place of memory.
    fn random_read(&self) -> f64 {
        self.waiting().max(1.0 / self.cpu.random_reads)
    }

    /// Seconds of a write at a random place of memory.
    fn random_write(&self) -> f64 {
        self.waiting().max(self.memory_of_write())
    }

    /// Seconds of a miss, if so many are outstanding as the threads have.
    fn waiting(&self) -> f64 {
        let latency = self.cpu.latency * 1e-9;
        let misses = (self.cpu.random_reads * latency / self.cpu.threads.max(1) as f64).max(MISSES);
        latency / (misses * self.threads)
    }

    fn memory_of_write(&self) -> f64 {
        ACCESSES_OF_WRITE / self.cpu.random_reads
    }

    /// The share of a table that the last-level caches do not hold.
    fn uncached(&self, table_bytes: f64) -> f64 {
        let cached = self.cpu.last_level_cache as f64;
        if table_bytes > cached { 1.0 - cached / table_bytes } else { 0.0 }
    }

    /// What a lookup takes at a time in a table of so many bytes that all threads share.
    pub(crate) fn lookups(&self, row_bytes: f64, table_bytes: f64) -> [(Bound, f64); 3] {
        self.accesses(row_bytes, table_bytes, self.random_read())
    }

    /// The same of an insert.
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

    /// Seconds of the memory, whoever asks, to read a row in order and to look it up in a table.
    pub(crate) fn memory_of_lookup(&self, row_bytes: f64, table_bytes: f64) -> f64 {
        row_bytes / self.cpu.read + self.uncached(table_bytes) / self.cpu.random_reads
    }

    /// The same to insert it.
    pub(crate) fn memory_of_insert(&self, row_bytes: f64, table_bytes: f64) -> f64 {
        row_bytes / self.cpu.read + self.uncached(table_bytes) * self.memory_of_write()
    }

    /// The partitions that are looked up one by one in a core's cache, or in its share of the last level if the buffers
    /// of so many partitions would not fit; in two passes if neither does (paper 1, section 6.2.1, the Xeon).
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

    /// Of partitioning by so many bits: a buffer of a cache line for each partition in a core's cache.
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

    /// Seconds to partition a side once, its histogram first; results go to other memory.
    pub(crate) fn partition_side(&self, side: &Side, efficiency: f64) -> [(Bound, f64); 2] {
        let histogram = self.histogram(side.key_column());
        let work = side.rows() * self.cpu.row_work.partition / efficiency / self.threads;
        [(Bound::CpuMemory, histogram + side.bytes() / self.cpu.copy), (Bound::CpuWork, histogram + work)]
    }

    /// Seconds to count the keys of a column by their partition: as long as it takes to read it (paper 1, section
    /// 6.2.8).
    pub(crate) fn histogram(&self, column_bytes: f64) -> f64 {
        column_bytes / self.read()
    }

    /// Bytes a second that the threads read in order. Each reads what its misses bring, or its share of what all read if that is
    /// more.
    fn read(&self) -> f64 {
        let alone = self.cpu.cache_line as f64 / (self.waiting() * self.threads);
        let share = self.cpu.read / self.cpu.threads.max(1) as f64;
        self.cpu.read.min(self.threads * alone.max(share))
    }
}

/// `no_partition`.
pub(crate) fn no_partition(site: &Site<'_>) -> Result<Cost, Refusal> {
    let join = site.join;
    site.check_cpu_memory("the hash table would", join.table_bytes())?;
    let processors = Processors::new(&site.cpu, site.threads);
    let mut cost = Cost::default();
    shared_table(&mut cost, site, &processors, join.table_bytes());
    Ok(cost)
}

/// Both sides at a table of so many bytes.
fn shared_table(cost: &mut Cost, site: &Site<'_>, processors: &Processors<'_>, table_bytes: f64) {
    let all = |rows: f64, parts: [(Bound, f64); 3]| parts.map(|(bound, seconds)| (bound, rows * seconds));
    let [build, probe] = [site.join.build, site.join.probe];
    cost.phase("build", &all(build.rows(), processors.inserts(build.tuple_bytes as f64, table_bytes)));
    cost.phase("probe", &all(probe.rows(), processors.lookups(probe.tuple_bytes as f64, table_bytes)));
}

/// `radix`.
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

/// `hybrid`: never refused, as it spills; disks are not in the model.
pub(crate) fn hybrid(site: &Site<'_>) -> Result<Cost, Refusal> {
    let join = site.join;
    // Tables are the threads' own.
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
