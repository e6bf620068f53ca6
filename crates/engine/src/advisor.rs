//! What `auto` chooses for the probe side of a join in memory, by a model of the machine.
//!
//! Beyond the caches a probe row costs `no_partition` a read at a random place. `radix` reads its key and columns, writes them to
//! their partition and reads them again, in order, and then looks them up in a part of the table that the cache has. Of all
//! processors together, in seconds a row:
//!
//! ```text
//! no_partition = max(1 / random reads, latency / (misses * threads), lookup / threads)
//! radix        = max(row / copied + row / read,          (partition + lookup) / threads)
//! ```
//!
//! Threads are those of the join, of which few do not get all the random reads that the memories give: each has its misses
//! outstanding at once, as many as were outstanding when all processors read. Random reads, their latency, bytes copied and bytes
//! read in order are what `overspill machine --measure` has found in huge pages, a second; partition and lookup are what it has
//! found a row to cost a processor, by doing it. A table that fits the last-level caches is left as it is.

use std::sync::LazyLock;

pub use overspill_join::hybrid::measure_row_work;
use overspill_join::radix::ProbeRegions;
use overspill_machine::measure::{MeasuredMemory, Measurements, MemoryRates, Processor, RowWork};
use overspill_machine::memory::PageSize;
use overspill_machine::topology::{Cpu, Topology};

use crate::config::Strategy;

/// The bytes that `radix` moves of a probe row: its key, and the columns that are needed.
const ROW_BYTES: f64 = 16.0;

/// Cache misses that a core has outstanding at once, at least.
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
    /// For joins of so many threads, by what was measured; `None` if huge pages of the processors' own memory, or the work of a
    /// row, were not.
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
        if own.is_empty() {
            return None;
        }
        let RowWork { partition, lookup } = measured.row_work?;
        let processors = cpu.threads.max(1) as f64;
        let threads = (threads.max(1) as f64).min(processors);
        let latency = all(|rates| rates.latency) / own.len() as f64 * 1e-9;
        let random_reads = all(|rates| rates.random_reads);
        let misses = (random_reads * latency / processors).max(MISSES);
        let random_read = (1.0 / random_reads).max(latency / (misses * threads));
        let no_partition = random_read.max(lookup / threads);
        let moved = ROW_BYTES / all(|rates| rates.copy) + ROW_BYTES / all(|rates| rates.read);
        let radix = moved.max((partition + lookup) / threads);
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
        // Of the CPU's others, and of a GPU.
        _ => return None,
    };
    Some(ProbeRegions::of_this_machine(beyond))
}

#[cfg(test)]
mod tests {
    use overspill_machine::topology::{Cache, CacheKind};

    use super::*;

    /// A machine of so many nodes and threads.
    fn cpu(nodes: usize, threads: usize) -> Cpu {
        let cache = |level, bytes, instances| Cache {
            level,
            kind: CacheKind::Unified,
            bytes,
            line: 64,
            shared_by: 1,
            instances,
        };
        let caches = vec![cache(2, 2 << 20, threads), cache(3, 32 << 20, nodes)];
        Cpu { model: None, sockets: nodes, cores: threads, threads, caches }
    }

    /// Nodes with these rates each, in random reads and bytes a second.
    fn measurements(nodes: usize, random_reads: f64, copy: f64) -> Measurements {
        let row_work = Some(RowWork { partition: 10e-9, lookup: 7e-9 });
        let mut measured = Measurements { row_work, ..Measurements::default() };
        for (own, node) in (0..nodes).flat_map(|own| (0..nodes).map(move |node| (own, node))) {
            for pages in [PageSize::Small, PageSize::Huge] {
                let processor = Processor::Cpu { node: own };
                let memory = MeasuredMemory::Host { node, pages, pinned: false };
                // Small pages and memory of other nodes do not count.
                let share = if pages == PageSize::Huge && own == node { 1.0 } else { 1e-3 };
                let (copy, random_reads) = (copy * share, random_reads * share);
                measured.rates.push(MemoryRates { processor, memory, read: copy, copy, random_reads, latency: 80.0 });
            }
        }
        measured
    }

    fn advice(nodes: usize, threads: usize, joined_by: usize, random_reads: f64, copy: f64) -> Option<Advice> {
        Advice::new(&cpu(nodes, threads), &measurements(nodes, random_reads, copy), joined_by)
    }

    #[test]
    fn few_processors_look_up_and_many_partition() {
        // Two processors are busy with their instructions whatever they do.
        let few = advice(1, 2, 2, 125e6, 14e9).unwrap();
        assert_eq!((few.no_partition, few.radix, few.partitioned_beyond), (8e-9, 8.5e-9, None));
        // Many wait for memory, of which reads at random get less.
        let many = advice(2, 64, 64, 400e6, 80e9).unwrap();
        assert_eq!((many.no_partition, many.partitioned_beyond), (1.25e-9, Some(64 << 20)));
        assert!((many.radix - 17e-9 / 64.0).abs() < 1e-15, "{many:?}");
        // Two of them do not wait longer than their own misses take.
        let two = advice(2, 64, 2, 400e6, 80e9).unwrap();
        assert!((two.no_partition - 4e-9).abs() < 1e-15 && two.partitioned_beyond.is_none(), "{two:?}");
        // Nor where all together had more of them outstanding.
        let wide = advice(1, 2, 2, 400e6, 80e9).unwrap();
        assert!((wide.no_partition - 3.5e-9).abs() < 1e-15, "{wide:?}");
        let one = advice(1, 2, 1, 400e6, 80e9).unwrap();
        assert!((one.no_partition - 7e-9).abs() < 1e-15, "{one:?}");
        // Until moving rows in order takes as long.
        let narrow = advice(2, 64, 64, 400e6, 12e9).unwrap();
        assert!(narrow.radix > 1.3e-9 && narrow.partitioned_beyond.is_none(), "{narrow:?}");
    }

    #[test]
    fn nothing_is_chosen_by_what_was_not_measured() {
        assert_eq!(Advice::new(&Cpu::of_this_machine(), &Measurements::default(), 2), None);
        assert_eq!(advice(1, 2, 2, 0.0, 14e9).unwrap().partitioned_beyond, None);
        let old = Measurements { row_work: None, ..measurements(1, 125e6, 14e9) };
        assert_eq!(Advice::new(&cpu(1, 2), &old, 2), None);
    }

    #[test]
    fn strategies_that_are_fixed_need_no_advice() {
        assert_eq!(probe_regions(Strategy::NoPartition, 2), None);
        assert_eq!(probe_regions(Strategy::Hybrid, 2), None);
        assert_eq!(probe_regions(Strategy::Radix, 2).unwrap().beyond, 0);
    }
}
