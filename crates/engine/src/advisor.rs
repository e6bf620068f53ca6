//! What `auto` chooses for the probe side of a join in memory, by a model of the machine.
//!
//! Beyond the caches a probe row costs `no_partition` a read at a random place. `radix` reads its key and columns, writes them to
//! their partition and reads them again, in order, and then looks them up in a part of the table that the cache has. Of all
//! processors together, in seconds a row:
//!
//! ```text
//! no_partition = max(1 / random reads, latency / (misses * threads), lookup * cached read / threads)
//! radix        = max(row / copied + row / read,          (partition + lookup) * cached read / threads)
//! ```
//!
//! Threads are those of the join, of which few do not get all the random reads that the memories give: each has its misses
//! outstanding at once. Random reads, their latency, bytes copied and bytes read in order are what `overspill machine --measure` has found in huge pages, a second; a
//! cached read is the latency of one that hits the first-level cache, and the work of a row is counted in such reads, so that it is
//! the algorithm's and not the machine's. A table that fits the last-level caches is left as it is.

use std::sync::LazyLock;

use overspill_join::radix::ProbeRegions;
use overspill_machine::measure::{LatencyCurve, MeasuredMemory, Measurements, MemoryRates, Processor};
use overspill_machine::memory::PageSize;
use overspill_machine::topology::{Cpu, Topology};

use crate::config::Strategy;

/// The bytes that `radix` moves of a probe row: its key, and the columns that are needed.
const ROW_BYTES: f64 = 16.0;

/// The work of a row, in reads that hit the first-level cache, one after the other: hashing and writing it to its partition, ...
const PARTITION_WORK: f64 = 5.0;
/// ... and a lookup in a part of a table that the cache has.
const LOOKUP_WORK: f64 = 3.5;

/// Cache misses that a core has outstanding at once.
const MISSES: f64 = 10.0;

/// Partitioning must promise so much less to be chosen: it takes memory, and is given up where columns have nulls.
const ADVANTAGE: f64 = 0.9;

/// What joins in memory do on a machine that has been measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Advice {
    /// Seconds of a probe row that looks into a table beyond the caches as it comes, of all processors together.
    pub no_partition: f64,
    /// The same of one that is partitioned first.
    pub radix: f64,
    /// Probe rows are partitioned if the table has more bytes; `None` if they never are.
    pub partitioned_beyond: Option<usize>,
}

impl Advice {
    /// For joins of so many threads, by what was measured; `None` if huge pages of the processors' own memory were not.
    pub fn new(cpu: &Cpu, measured: &Measurements, threads: usize) -> Option<Self> {
        let is_own = |processor: Processor, memory: MeasuredMemory| match (processor, memory) {
            (Processor::Cpu { node: own }, MeasuredMemory::Host { node, pages: PageSize::Huge, pinned: false }) => {
                own == node
            }
            _ => false,
        };
        let own: Vec<&MemoryRates> =
            measured.rates.iter().filter(|rates| is_own(rates.processor, rates.memory)).collect();
        let all = |rate: fn(&MemoryRates) -> f64| own.iter().copied().map(rate).sum::<f64>();
        let curve = |curve: &&LatencyCurve| is_own(curve.processor, curve.memory);
        // The least range is that of few lines.
        let cached_read = measured.latency.iter().find(curve)?.points.first()?.nanoseconds * 1e-9;
        let threads = threads.clamp(1, cpu.threads.max(1)) as f64;
        let work = |reads: f64| reads * cached_read / threads;
        let latency = all(|rates| rates.latency) / own.len() as f64 * 1e-9;
        let random_read = (1.0 / all(|rates| rates.random_reads)).max(latency / (MISSES * threads));
        let no_partition = random_read.max(work(LOOKUP_WORK));
        let moved = ROW_BYTES / all(|rates| rates.copy) + ROW_BYTES / all(|rates| rates.read);
        let radix = moved.max(work(PARTITION_WORK + LOOKUP_WORK));
        let caches =
            cpu.caches.iter().filter(|cache| Some(cache.level) == cpu.caches.iter().map(|cache| cache.level).max());
        let cached: u64 = caches.map(|cache| cache.bytes * cache.instances as u64).sum();
        // Not so if a rate is missing.
        let is_better = radix < no_partition * ADVANTAGE && no_partition.is_finite();
        let partitioned_beyond = is_better.then(|| usize::try_from(cached).unwrap_or(usize::MAX));
        Some(Self { no_partition, radix, partitioned_beyond })
    }

    /// The same for this machine, if it was measured before the first join of the process.
    fn of_this_machine(threads: usize) -> Option<Self> {
        static MEASURED: LazyLock<Option<(Cpu, Measurements)>> = LazyLock::new(|| {
            // Its GPUs do not matter, and looking for them would open them.
            let topology = Topology::without_gpus();
            let measured = Measurements::load_for_processors(&Measurements::path()?, &topology)?;
            Some((topology.cpu, measured))
        });
        let (cpu, measured) = MEASURED.as_ref()?;
        Advice::new(cpu, measured, threads)
    }
}

/// Of which tables a join of so many threads partitions its probe rows, and for how much of a table at a time; `None` if of none.
pub fn probe_regions(strategy: Strategy, threads: usize) -> Option<ProbeRegions> {
    let beyond = match strategy {
        Strategy::Radix => 0,
        Strategy::Auto => Advice::of_this_machine(threads)?.partitioned_beyond?,
        Strategy::NoPartition | Strategy::Hybrid => return None,
    };
    Some(ProbeRegions::of_this_machine(beyond))
}

#[cfg(test)]
mod tests {
    use overspill_machine::measure::LatencyPoint;
    use overspill_machine::topology::{Cache, CacheKind};

    use super::*;

    /// A machine whose nodes have these rates each, in random reads and bytes a second.
    fn advice(nodes: usize, threads: usize, joined_by: usize, random_reads: f64, copy: f64) -> Option<Advice> {
        let cache = |level, bytes, instances| Cache {
            level,
            kind: CacheKind::Unified,
            bytes,
            line: 64,
            shared_by: 1,
            instances,
        };
        let cpu = Cpu {
            model: None,
            sockets: nodes,
            cores: threads,
            threads,
            caches: vec![cache(2, 2 << 20, threads), cache(3, 32 << 20, nodes)],
        };
        let mut measured = Measurements::default();
        for (own, node) in (0..nodes).flat_map(|own| (0..nodes).map(move |node| (own, node))) {
            for pages in [PageSize::Small, PageSize::Huge] {
                let processor = Processor::Cpu { node: own };
                let memory = MeasuredMemory::Host { node, pages, pinned: false };
                // Small pages and memory of other nodes do not count.
                let share = if pages == PageSize::Huge && own == node { 1.0 } else { 1e-3 };
                let (copy, random_reads) = (copy * share, random_reads * share);
                measured.rates.push(MemoryRates { processor, memory, read: copy, copy, random_reads, latency: 80.0 });
                let points = vec![LatencyPoint { range: 1 << 20, nanoseconds: 2.0 / share }];
                measured.latency.push(LatencyCurve { processor, memory, stride: 4096, points });
            }
        }
        Advice::new(&cpu, &measured, joined_by)
    }

    #[test]
    fn few_processors_look_up_and_many_partition() {
        // Two processors are busy with their instructions whatever they do.
        let few = advice(1, 2, 2, 125e6, 14e9).unwrap();
        assert_eq!((few.no_partition, few.radix, few.partitioned_beyond), (8e-9, 8.5e-9, None));
        // Many wait for memory, of which reads at random get less.
        let many = advice(2, 64, 64, 400e6, 80e9).unwrap();
        assert_eq!((many.no_partition, many.partitioned_beyond), (1.25e-9, Some(64 << 20)));
        assert!((many.radix - (PARTITION_WORK + LOOKUP_WORK) * 2e-9 / 64.0).abs() < 1e-15, "{many:?}");
        // Two of them do not wait longer than their own misses take.
        let two = advice(2, 64, 2, 400e6, 80e9).unwrap();
        assert!((two.no_partition - 4e-9).abs() < 1e-15 && two.partitioned_beyond.is_none(), "{two:?}");
        // Until moving rows in order takes as long.
        let narrow = advice(2, 64, 64, 400e6, 12e9).unwrap();
        assert!(narrow.radix > 1.3e-9 && narrow.partitioned_beyond.is_none(), "{narrow:?}");
    }

    #[test]
    fn nothing_is_chosen_by_what_was_not_measured() {
        assert_eq!(Advice::new(&Cpu::of_this_machine(), &Measurements::default(), 2), None);
        assert_eq!(advice(1, 2, 2, 0.0, 14e9).unwrap().partitioned_beyond, None);
    }

    #[test]
    fn strategies_that_are_fixed_need_no_advice() {
        assert_eq!(probe_regions(Strategy::NoPartition, 2), None);
        assert_eq!(probe_regions(Strategy::Hybrid, 2), None);
        assert_eq!(probe_regions(Strategy::Radix, 2).unwrap().beyond, 0);
    }
}
