//! The choices of `auto`, made by the cost model of [`overspill_advisor`] for this machine.
//!
//! The results of `overspill machine --measure` are loaded once, before the first join of a runtime. Without measurements
//! no rows are partitioned in memory. A table that fits the last-level caches is not partitioned.

use std::sync::{Arc, OnceLock};

use overspill_advisor::{Advice, Cpu, HashTable as Layout, Join, Machine, PrefixSumProcessor, ProbeRows, Strategy};
use overspill_gpu_join::{Gpu, LinkCompression, StrategyAdvisor};
pub use overspill_join::hybrid::measure_row_work;
use overspill_join::radix::ProbeRegions;
use overspill_machine::DeviceKind;
use overspill_machine::measure::{Measurements, MemoryRates, Processor, QueryWork};
use overspill_machine::topology::Topology;

use crate::config::{GpuLinkCompression, OverspillConfig};

/// What was measured of this machine, loaded when a join first asks for it.
#[derive(Debug, Default)]
pub struct MeasuredMachine {
    cpu: OnceLock<Option<Cpu>>,
    /// The machine with its GPU, and the number of GPUs.
    gpu: OnceLock<Option<(Arc<Machine>, usize)>>,
    queries: OnceLock<Option<QueryWork>>,
}

impl MeasuredMachine {
    /// The cost of a probe row, if it was measured before the first join.
    fn probe_rows(&self, threads: usize) -> Option<ProbeRows> {
        let measured = self.cpu.get_or_init(|| {
            // The GPUs of the machine do not matter here, and looking for them would open them.
            let topology = Topology::without_gpus();
            let measured = Measurements::load_for_processors(&Measurements::path()?, &topology)?;
            Cpu::measured(&topology.cpu, &measured)
        });
        measured.as_ref().map(|cpu| ProbeRows::new(cpu, threads))
    }

    /// What queries cost, if it was measured before the first query that a scheduler asks for.
    pub(crate) fn queries(&self) -> Option<&QueryWork> {
        let measured = self.queries.get_or_init(|| {
            let path = Measurements::path()?;
            let known = Measurements::load_for_processors(&path, &Topology::without_gpus())?.query_work?;
            // The driver is loaded only if a GPU has been measured.
            let is_of_others = known.gpu.is_some() && Measurements::load(&path, &Topology::of_this_machine()).is_none();
            Some(QueryWork { gpu: known.gpu.filter(|_| !is_of_others), ..known })
        });
        measured.as_ref()
    }

    /// The machine with its GPU, if both were measured before the first join that asks for them, and the number of GPUs.
    fn gpu(&self) -> Option<&(Arc<Machine>, usize)> {
        let measured = self.gpu.get_or_init(|| {
            let path = Measurements::path()?;
            let is_of_gpu = |rates: &MemoryRates| matches!(rates.processor, Processor::Gpu { .. });
            // The driver is loaded only if a GPU has been measured.
            let known = Measurements::load_for_processors(&path, &Topology::without_gpus())?;
            if !known.rates.iter().any(is_of_gpu) {
                return None;
            }
            let topology = Topology::of_this_machine();
            let machine = Machine::measured(&topology, &Measurements::load(&path, &topology)?)?;
            machine.gpu.is_some().then(|| (Arc::new(machine), topology.gpus.len()))
        });
        measured.as_ref()
    }

    /// Chooses the processor that counts keys before the first pass of `triton`, in a join of `threads` threads.
    ///
    /// Without measurements it is the CPU. All CPU threads together read their memory faster than links transfer it (paper 1,
    /// section 6.2.8: 1.6 to 2.2 times as fast as NVLink 2.0), keys then cross the link only once, which leaves the link to
    /// other joins, and the GPU is free for others meanwhile. A single thread reads no more than PCIe transfers, and far less
    /// than a coherent link: with one thread and a coherent link, the GPU counts.
    pub fn prefix_sum(&self, config: &OverspillConfig, threads: usize, gpu: &Gpu) -> PrefixSumProcessor {
        // Measurements do not apply to the emulated device, and looking them up would select another driver.
        let is_real = config.device.0 != Some(DeviceKind::Emulated);
        let measured = || if is_real { self.gpu()?.0.prefix_sum(threads) } else { None };
        processor_of(config.gpu_prefix_sum.0, threads, gpu.device().properties().coherent, measured)
    }

    /// When a join compresses what crosses the links of `gpus` GPUs, if `threads` threads do so at once. `auto` needs the measured rate of a
    /// link.
    pub(crate) fn link_compression(&self, config: &OverspillConfig, threads: usize, gpus: usize) -> LinkCompression {
        // Measurements do not apply to the emulated device.
        let is_real = config.device.0 != Some(DeviceKind::Emulated);
        let measured = || if is_real { self.gpu()?.0.gpu.as_ref().map(|gpu| gpu.link.read) } else { None };
        match config.gpu_link_compression.0 {
            Some(GpuLinkCompression::Cascaded) => LinkCompression::Always,
            Some(GpuLinkCompression::Off) => LinkCompression::Off,
            None => match measured() {
                Some(link) => LinkCompression::WhereFaster { link: link * gpus as f64, threads },
                None => LinkCompression::Off,
            },
        }
    }

    /// The hash tables for which a join of `threads` threads partitions its probe rows, and the part of a table that it looks
    /// up at a time. `None` if it never partitions them.
    pub fn probe_regions(&self, strategy: Option<Strategy>, threads: usize) -> Option<ProbeRegions> {
        let beyond = match strategy {
            Some(Strategy::Radix) => 0,
            None => self.probe_rows(threads)?.partitioned_beyond?,
            // The other strategies of the CPU, and those of a GPU.
            Some(_) => return None,
        };
        Some(ProbeRegions::of_this_machine(usize::try_from(beyond).unwrap_or(usize::MAX)))
    }
}

/// How the joins of a session use a GPU.
#[derive(Debug)]
pub(crate) enum GpuAdvisor {
    /// Tries these strategies in order.
    Fixed(&'static [Strategy]),
    /// Orders the strategies by the cost model.
    Measured {
        machine: Arc<Machine>,
        /// Rows of the probe side, as estimated by the plan.
        probe_rows: Option<u64>,
        /// Bytes for tables and cached partitions: half of the memory of one GPU that joins may use.
        gpu_memory: u64,
        /// The number of GPUs that hold hash tables together.
        gpus: usize,
        threads: usize,
        /// Bytes that the GPU returns for each match.
        result_bytes: u64,
        /// Whether the CPU may be chosen.
        or_cpu: bool,
    },
}

/// How many times as fast a join is assumed to be on a GPU that was not measured (paper 5, figure 1).
const SPEEDUP: f64 = 4.0;

/// The order without measurements: a hash table is faster while it fits GPU memory.
const IN_MEMORY_FIRST: &[Strategy] = &[Strategy::GpuNoPartition, Strategy::Triton];

/// A strategy of a GPU, and those to try if it is not possible. `None` if it is a strategy of the CPU.
fn fallbacks(strategy: Strategy) -> Option<&'static [Strategy]> {
    match strategy {
        Strategy::NoPartition | Strategy::Radix | Strategy::Hybrid => None,
        Strategy::GpuNoPartition => Some(IN_MEMORY_FIRST),
        Strategy::Triton => Some(&[Strategy::Triton]),
        Strategy::CpuPartitioned => Some(&[Strategy::CpuPartitioned]),
        Strategy::Het => Some(&[Strategy::Het, Strategy::GpuNoPartition, Strategy::Triton]),
        // The processors share a table that does not fit GPU memory (paper 2, figure 11).
        Strategy::GpuHet => Some(&[Strategy::GpuHet, Strategy::Het, Strategy::GpuNoPartition, Strategy::Triton]),
    }
}

impl GpuAdvisor {
    /// The advisor of a join with these estimated rows of its sides and this many threads. `None` if the join runs on the CPU
    /// whatever its rows.
    pub(crate) fn new(
        config: &OverspillConfig,
        measured: &MeasuredMachine,
        [build_rows, probe_rows]: [Option<u64>; 2],
        threads: usize,
        wants_pairs: bool,
    ) -> Option<Self> {
        if config.device.0 == Some(DeviceKind::Cpu) {
            return None;
        }
        if let Some(strategy) = config.strategy.0 {
            return fallbacks(strategy).map(Self::Fixed);
        }
        let or_cpu = match config.device.0 {
            // Measurements do not apply to the emulated device.
            Some(DeviceKind::Emulated) => return Some(Self::Fixed(IN_MEMORY_FIRST)),
            Some(DeviceKind::Cpu | DeviceKind::Gpu) => false,
            None => true,
        };
        match measured.gpu() {
            Some((machine, there)) => {
                let (machine, there) = (Arc::clone(machine), *there);
                // The measured memory already excludes a tenth.
                let limit = match config.gpu_memory_limit {
                    0 => machine.gpu.as_ref()?.memory_bytes,
                    limit => limit as u64,
                };
                // If there are fewer GPUs than the setting asks for, opening them returns the error.
                let gpus = if config.gpus == 0 { there } else { config.gpus.min(there) };
                let (gpu_memory, result_bytes) = (limit / 2, if wants_pairs { TUPLE_BYTES } else { 0 });
                let advisor = Self::Measured { machine, probe_rows, gpu_memory, gpus, threads, result_bytes, or_cpu };
                // Opening a GPU takes longer than most joins, so it is done only for joins that are expected to gain by it.
                let gains = !or_cpu || build_rows.is_some_and(|rows| !advisor.strategies(rows, true).is_empty());
                gains.then_some(advisor)
            }
            None if or_cpu => None,
            None => Some(Self::Fixed(IN_MEMORY_FIRST)),
        }
    }

    /// Whether the user did not ask for a GPU by name, so that the CPU may be chosen.
    pub(crate) fn may_choose_cpu(&self) -> bool {
        matches!(self, Self::Measured { or_cpu: true, .. })
    }

    /// How many times as fast a join with these rows is predicted to be with the GPU as on the CPU.
    pub(crate) fn speedup(&self, build_rows: u64, probe_rows: u64) -> f64 {
        let Self::Measured { machine, threads, gpu_memory, .. } = self else { return SPEEDUP };
        let rows = probe_rows.max(build_rows);
        let join = Join {
            gpu_memory_limit: Some(*gpu_memory),
            threads: Some(*threads),
            ..Join::new(build_rows, rows, TUPLE_BYTES)
        };
        let advice = machine.advise(&join);
        let least = |uses_gpu: bool| {
            let of_place = advice.strategies.iter().filter(|prediction| prediction.strategy.uses_gpu() == uses_gpu);
            of_place.map(|prediction| prediction.seconds).fold(f64::INFINITY, f64::min)
        };
        let speedup = least(false) / least(true);
        if speedup.is_finite() && speedup > 0.0 { speedup } else { SPEEDUP }
    }

    /// Sets the number of GPUs that hold hash tables together. It may be lower than the setting.
    pub(crate) fn expect_gpus(&mut self, joining: usize) {
        if let Self::Measured { gpus, .. } = self {
            *gpus = joining;
        }
    }

    /// Whether it knows the cost of a table that does not fit GPU memory.
    pub(crate) fn is_measured(&self) -> bool {
        matches!(self, Self::Measured { .. })
    }
}

impl StrategyAdvisor for GpuAdvisor {
    fn strategies(&self, build_rows: u64, is_dense: bool) -> Vec<Strategy> {
        let (machine, probe_rows, limit, gpus, threads, result_bytes, or_cpu) = match self {
            Self::Fixed(strategies) => return strategies.to_vec(),
            Self::Measured { machine, probe_rows, gpu_memory, gpus, threads, result_bytes, or_cpu } => {
                (machine, *probe_rows, *gpu_memory, *gpus, *threads, *result_bytes, *or_cpu)
            }
        };
        let hash_table = if is_dense { Layout::Perfect } else { Layout::LinearProbing };
        let rows = probe_rows.unwrap_or(build_rows).max(build_rows);
        let join = Join {
            gpu_memory_limit: Some(limit),
            hash_table,
            threads: Some(threads),
            result_bytes,
            ..Join::new(build_rows, rows, TUPLE_BYTES)
        };
        let advice = machine.advise(&join);
        // A hash table on several GPUs is predicted as if one GPU had the memory of all; the cost of their links is unknown.
        let together = (gpus > 1).then(|| with_memory_of(machine, gpus).advise(&of_all(&join, gpus)));
        let is_chosen = |advice: &Advice| advice.choice == Strategy::GpuNoPartition;
        if or_cpu && !advice.choice.uses_gpu() && !together.as_ref().is_some_and(is_chosen) {
            return Vec::new();
        }
        let of = |strategy| match &together {
            Some(together) if strategy == Strategy::GpuNoPartition => together.of(strategy),
            _ => advice.of(strategy),
        };
        let of_gpu = Strategy::ALL.into_iter().filter(|strategy| strategy.uses_gpu()).map(of);
        let mut possible: Vec<_> = of_gpu.filter(|prediction| prediction.refusal.is_none()).collect();
        possible.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        possible.into_iter().map(|prediction| prediction.strategy).collect()
    }
}

/// The machine, with the memory of `gpus` GPUs as its GPU's memory.
fn with_memory_of(machine: &Machine, gpus: usize) -> Machine {
    let mut machine = machine.clone();
    if let Some(gpu) = &mut machine.gpu {
        gpu.memory_bytes = gpu.memory_bytes.saturating_mul(gpus as u64);
    }
    machine
}

/// The join, with its GPU memory limit multiplied by `gpus`.
fn of_all(join: &Join, gpus: usize) -> Join {
    let gpu_memory_limit = join.gpu_memory_limit.map(|limit| limit.saturating_mul(gpus as u64));
    Join { gpu_memory_limit, ..*join }
}

/// The bytes of a row: a key and a value.
const TUPLE_BYTES: u64 = 16;

fn processor_of(
    choice: Option<PrefixSumProcessor>,
    threads: usize,
    is_coherent: bool,
    measured: impl FnOnce() -> Option<PrefixSumProcessor>,
) -> PrefixSumProcessor {
    choice.or_else(measured).unwrap_or(if threads > 1 || !is_coherent {
        PrefixSumProcessor::Cpu
    } else {
        PrefixSumProcessor::Gpu
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Choice;

    /// The advisor of a machine with this profile, for a probe side of `probe_rows` rows.
    fn measured(name: &str, probe_rows: u64, or_cpu: bool) -> GpuAdvisor {
        measured_with(name, probe_rows, or_cpu, 1)
    }

    /// The same on a machine with `gpus` such GPUs.
    fn measured_with(name: &str, probe_rows: u64, or_cpu: bool, gpus: usize) -> GpuAdvisor {
        let machine = Arc::new(Machine::named(name).unwrap());
        let gpu_memory = machine.gpu.as_ref().unwrap().memory_bytes / 2;
        let threads = machine.cpu.threads;
        let probe_rows = Some(probe_rows);
        GpuAdvisor::Measured { machine, probe_rows, gpu_memory, gpus, threads, result_bytes: TUPLE_BYTES, or_cpu }
    }

    #[test]
    fn what_was_measured_orders_strategies_by_the_size_of_the_join() {
        let large = 2_048_000_000;
        // A large hash table would be read across the link; a small one is not.
        assert_eq!(measured("ac922", large, true).strategies(large, true)[0], Strategy::Triton);
        assert_eq!(measured("ac922", large, true).strategies(100_000_000, true)[0], Strategy::GpuNoPartition);
        // Across PCIe 3.0 the CPU is faster; a user who asks for a GPU still gets one.
        assert_eq!(measured("xeon-v100-pcie3", large, true).strategies(large, true), []);
        assert!(!measured("xeon-v100-pcie3", large, false).strategies(large, true).is_empty());
        // A kernel launch takes longer than such a join.
        assert_eq!(measured("gh200", 1000, true).strategies(1000, true), []);
    }

    #[test]
    fn a_table_that_fits_several_gpus_is_tried_first() {
        let first = |gpus| measured_with("ac922", 2_048_000_000, true, gpus).strategies(700_000_000, true)[0];
        // In the model: 11 GB of slots, and half of 16 GB per GPU.
        assert_eq!([1, 2, 3].map(first), [Strategy::Triton, Strategy::GpuNoPartition, Strategy::GpuNoPartition]);
    }

    #[test]
    fn settings_say_who_joins() {
        let advisor = |device, strategy| {
            let (device, strategy) = (Choice(device), Choice(strategy));
            let config = OverspillConfig { device, strategy, ..OverspillConfig::default() };
            GpuAdvisor::new(&config, &MeasuredMachine::default(), [None; 2], 2, true)
        };
        let fixed = |advisor: Option<GpuAdvisor>| advisor.map(|advisor| advisor.strategies(1000, true));
        assert_eq!(fixed(advisor(Some(DeviceKind::Cpu), Some(Strategy::Triton))), None);
        assert_eq!(fixed(advisor(Some(DeviceKind::Gpu), Some(Strategy::Hybrid))), None);
        assert_eq!(fixed(advisor(None, Some(Strategy::Triton))), Some(vec![Strategy::Triton]));
        assert_eq!(fixed(advisor(Some(DeviceKind::Emulated), None)), Some(IN_MEMORY_FIRST.to_vec()));
        assert_eq!(
            fixed(advisor(Some(DeviceKind::Emulated), Some(Strategy::CpuPartitioned))),
            Some(vec![Strategy::CpuPartitioned])
        );
    }

    #[test]
    fn the_processor_that_reads_keys_sooner_counts_them() {
        use PrefixSumProcessor::{Cpu, Gpu};
        let of = |choice, threads, is_coherent, measured| processor_of(choice, threads, is_coherent, || measured);
        for (threads, is_coherent, expected) in [(1, false, Cpu), (1, true, Gpu), (2, true, Cpu), (2, false, Cpu)] {
            assert_eq!(of(None, threads, is_coherent, None), expected, "{threads} {is_coherent}");
            for measured in [None, Some(Cpu), Some(Gpu)] {
                assert_eq!(of(Some(Cpu), threads, is_coherent, measured), Cpu);
                assert_eq!(of(Some(Gpu), threads, is_coherent, measured), Gpu);
            }
            assert_eq!(of(None, threads, is_coherent, Some(Gpu)), Gpu);
            assert_eq!(of(None, threads, is_coherent, Some(Cpu)), Cpu);
        }
    }

    #[test]
    fn strategies_that_are_fixed_need_no_advice() {
        let machine = MeasuredMachine::default();
        assert_eq!(machine.probe_regions(Some(Strategy::NoPartition), 2), None);
        assert_eq!(machine.probe_regions(Some(Strategy::Hybrid), 2), None);
        assert_eq!(machine.probe_regions(Some(Strategy::Radix), 2).unwrap().beyond, 0);
    }
}
