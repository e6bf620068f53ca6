//! Builds the model of this machine from measurements.

mod network;

use overspill_machine::measure::{GpuWork, MeasuredMemory, Measurements, MemoryRates, Processor};
use overspill_machine::memory::PageSize;
use overspill_machine::topology::{self, Topology};

use crate::machine::{Cpu, Gpu, Link, Machine, Translation};

/// Bytes of a transaction of a GPU with CPU memory: a line of its cache (paper 1, section 3.4.1).
const TRANSACTION_BYTES: u64 = 128;

/// A range has the latency of short ranges, and a translation buffer reaches it, up to this ratio of latencies.
const SAME_LATENCY: f64 = 1.25;

impl Cpu {
    /// The processors from measurements; `None` if huge pages of their own memory, or the work per row, were not measured.
    pub fn measured(cpu: &topology::Cpu, measured: &Measurements) -> Option<Self> {
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
        let row_work = measured.row_work?;
        let last = cpu.caches.iter().map(|cache| cache.level).max();
        let last_level = cpu.caches.iter().filter(|cache| Some(cache.level) == last);
        let line = cpu.caches.iter().map(|cache| cache.line).max().unwrap_or(64);
        Some(Self {
            model: cpu.model.clone().unwrap_or_else(|| "a CPU of unknown model".to_owned()),
            cores: cpu.cores.max(1),
            threads: cpu.threads.max(1),
            cache_line: line.max(1),
            core_cache: cpu.private_cache().unwrap_or(line).max(1),
            last_level_cache: last_level.map(|cache| cache.bytes * cache.instances as u64).sum(),
            memory_bytes: None,
            read: all(|rates| rates.read),
            copy: all(|rates| rates.copy),
            random_reads: all(|rates| rates.random_reads),
            latency: all(|rates| rates.latency) / own.len() as f64,
            large_data: None,
            row_work,
            shared_lookup: None,
        })
    }
}

impl Machine {
    /// The machine from measurements, with its first GPU; `None` if its processors were not measured. A strategy that needs a
    /// GPU figure that was not measured is unavailable.
    pub fn measured(topology: &Topology, measured: &Measurements) -> Option<Self> {
        let cpu = Cpu { memory_bytes: topology.memory.bytes, ..Cpu::measured(&topology.cpu, measured)? };
        let (gpu, no_gpu_because) = match topology.gpus.first() {
            None => (None, Some(topology.no_gpu_because.clone().unwrap_or_else(|| "the driver finds none".to_owned()))),
            Some(gpu) => match measured_gpu(gpu, measured) {
                Some(gpu) => (Some(gpu), None),
                None => (None, Some("its memories were not measured; run overspill machine --measure".to_owned())),
            },
        };
        let name = "this machine".to_owned();
        let description = cpu.model.clone();
        Some(Self { name, description, sources: [].into(), cpu, gpu, no_gpu_because, network: None })
    }
}

fn measured_gpu(gpu: &topology::Gpu, measured: &Measurements) -> Option<Gpu> {
    let properties = &gpu.properties;
    let processor = Processor::Gpu { ordinal: gpu.ordinal };
    let of_gpu = || measured.rates.iter().filter(|rates| rates.processor == processor);
    let own = of_gpu().find(|rates| rates.memory == MeasuredMemory::Gpu { ordinal: gpu.ordinal })?;
    // If the GPU reads pageable memory, joins do not pin theirs.
    let is_joined = |memory: MeasuredMemory| match memory {
        MeasuredMemory::Host { pages: PageSize::Huge, pinned, .. } => pinned != properties.coherent,
        _ => false,
    };
    let host = of_gpu().find(|rates| is_joined(rates.memory))?;
    let work = measured.gpu_work.iter().find(|work| work.ordinal == gpu.ordinal);
    let curve = measured.latency.iter().find(|curve| curve.processor == processor && is_joined(curve.memory));
    // The longest range that is not slower than the shortest. Longer ranges were not measured.
    let reach = curve.and_then(|curve| {
        let shortest = curve.points.first()?.nanoseconds;
        let near = curve.points.iter().take_while(|point| point.nanoseconds <= shortest * SAME_LATENCY);
        near.last().map(|point| point.range as f64)
    });
    let link = Link {
        kind: gpu.link.map_or_else(
            || "the GPU's link".to_owned(),
            |link| match link.generation {
                Some(generation) => format!("PCIe {generation}.0 x{}", link.lanes),
                None => format!("PCIe x{}", link.lanes),
            },
        ),
        read: host.read,
        // The rate at which it wrote while it read at the same rate.
        write: host.copy,
        both: 2.0 * host.copy,
        random_reads: host.random_reads,
        random_writes: work.map(|work| work.random_host_writes),
        transaction_bytes: TRANSACTION_BYTES,
        coherent: properties.coherent,
        system_atomics: properties.host_native_atomics && properties.coherent,
        translation: Some(Translation {
            near_bytes: reach.unwrap_or(1.0),
            far_slowdown: 1.0,
            far_bytes: reach.unwrap_or(1.0),
            misses: None,
            read_misses: None,
        }),
    };
    Some(Gpu {
        model: properties.name.clone(),
        // The rest is left to the driver, as in measurements.
        memory_bytes: properties.memory / 10 * 9,
        bandwidth: own.read,
        random_reads: own.random_reads,
        random_writes: work.map(|work| work.random_writes),
        l2_bytes: properties.l2_cache,
        l2_random_reads: None,
        multiprocessors: properties.multiprocessors,
        clock: f64::from(properties.clock_kilohertz) * 1e3,
        scratchpad_bytes: properties.scratchpad_per_block,
        launch: work.map(|work: &GpuWork| work.launch),
        link,
    })
}
