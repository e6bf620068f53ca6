//! Joins of CPU and GPU together (paper 2, section 6).
//!
//! Each processor takes morsels as fast as it can, so that rates add up until CPU memory is fully used. A row takes CPU
//! memory `bytes / read + random accesses / random reads`, on either processor. If CPU memory does not suffice, the GPU is
//! served first, as it needs less of it per row. A second processor so never slows the first, which is the goal of the
//! papers' scheduler.

use super::cpu::Processors;
use super::gpu_no_partition::{self, probe_bytes, slots_of_probe};
use super::link::{self, Access, HybridTable};
use super::{Site, launch, longest};
use crate::machine::{Cpu, Gpu};
use crate::prediction::{Bound, Cost, LinkBytes, Refusal};

/// Cores that stage copies between pageable memory and a GPU (paper 2, section 7.2.1).
const STAGING_CORES: f64 = 4.0;

/// Launches that the GPU waits for. It processes batches of morsels, and the launches of further batches overlap with work.
const LAUNCHES: f64 = 2.0;

/// A processor in a phase: the seconds per row that it takes alone, and the seconds per row of CPU memory.
#[derive(Debug, Clone, Copy)]
struct Worker {
    row: f64,
    memory: f64,
}

/// `het`: one shared table in CPU memory.
pub(crate) fn het(site: &Site<'_>) -> Result<Cost, Refusal> {
    let (gpu, join) = (site.gpu()?, site.join);
    if !gpu.link.system_atomics {
        return Err(Refusal::NoSystemAtomics { link: gpu.link.kind.clone() });
    }
    let launch = launch(gpu)?;
    site.check_cpu_memory("the hash table would", join.table_bytes())?;
    let processors = Processors::new(&site.cpu, site.threads);
    let table = HybridTable::new(join.table_bytes(), 0.0, join.build.key_bytes);
    let mut cost = Cost::default();
    let build_bytes = join.build.tuple_bytes as f64;
    let cpu = Worker {
        row: longest(&processors.inserts(build_bytes, table.bytes).map(|(_, seconds)| seconds)),
        memory: processors.memory_of_insert(build_bytes, table.bytes),
    };
    let row = gpu_row(site, gpu, &table, Access::Write, build_bytes, join.accesses_of_hit())?;
    Team::new(cpu, Worker { row, ..cpu }).work(&mut cost, "build", join.build.rows());
    let probe_row = probe_bytes(gpu, join) / join.probe.rows().max(1.0);
    let cpu = cpu_probe(site, &processors, &table);
    let row = gpu_row(site, gpu, &table, Access::Read, probe_row, slots_of_probe(join))?;
    let memory = processors.memory_of_lookup(probe_row, table.bytes);
    let team = Team::new(cpu, Worker { row, memory });
    team.work(&mut cost, "probe", join.probe.rows());
    cost.launches(LAUNCHES, launch);
    cost.link_bytes.to_gpu = team.gpu_share * join.probe.rows() * probe_row;
    Ok(cost)
}

/// `gpu_het`: the GPU builds a table in its memory, and the CPU gets a copy.
pub(crate) fn gpu_het(site: &Site<'_>) -> Result<Cost, Refusal> {
    let (gpu, join) = (site.gpu()?, site.join);
    let launch = launch(gpu)?;
    let (needed, limit) = (join.table_bytes(), site.gpu_memory(gpu));
    if needed > limit {
        return Err(Refusal::GpuMemory { what: "the table's slots", needed, limit });
    }
    site.check_cpu_memory("the copy of the hash table would", needed)?;
    let table = HybridTable::new(needed, limit, join.build.key_bytes);
    let mut cost = Cost::default();
    gpu_no_partition::build(&mut cost, site, gpu, &table)?;
    cost.phase("copy of the table", &[(Bound::Transfer, needed / copy_rate(&site.cpu, gpu))]);
    let processors = Processors::new(&site.cpu, site.threads);
    let probe_row = probe_bytes(gpu, join) / join.probe.rows().max(1.0);
    let row = gpu_row(site, gpu, &table, Access::Read, probe_row, slots_of_probe(join))?;
    let cpu = cpu_probe(site, &processors, &table);
    let team = Team::new(cpu, Worker { row, memory: probe_row / site.cpu.read });
    team.work(&mut cost, "probe", join.probe.rows());
    cost.launches(LAUNCHES, launch);
    let probed = team.gpu_share * join.probe.rows() * probe_row;
    cost.link_bytes = LinkBytes { to_gpu: join.build.bytes() + probed, to_cpu: needed };
    Ok(cost)
}

fn cpu_probe(site: &Site<'_>, processors: &Processors<'_>, table: &HybridTable) -> Worker {
    let bytes = site.join.probe.tuple_bytes as f64;
    Worker {
        row: longest(&processors.lookups(bytes, table.bytes).map(|(_, seconds)| seconds)),
        memory: processors.memory_of_lookup(bytes, table.bytes),
    }
}

/// Seconds per row, with `row_bytes` bytes over the link and `slots` slot accesses.
fn gpu_row(
    site: &Site<'_>,
    gpu: &Gpu,
    table: &HybridTable,
    access: Access,
    row_bytes: f64,
    slots: f64,
) -> Result<f64, Refusal> {
    let [near, far] = table.access(gpu, access, slots)?;
    Ok(link::seconds(&gpu.link, site.memory, row_bytes, 0.0).max(near.1 + far.1))
}

/// Bytes per second from GPU memory to pageable CPU memory.
fn copy_rate(cpu: &Cpu, gpu: &Gpu) -> f64 {
    gpu.link.write.min(cpu.copy * (STAGING_CORES / cpu.cores.max(1) as f64).min(1.0))
}

/// The combined throughput of both processors in a phase.
#[derive(Debug, Clone, Copy)]
struct Team {
    /// Rows per second.
    rate: f64,
    /// The share of rows that the GPU processes.
    gpu_share: f64,
    /// Whether CPU memory limits the CPU.
    waits: bool,
}

impl Team {
    /// Each processor runs at its own rate while CPU memory suffices. The GPU comes first, as it needs less of it per row.
    fn new(cpu: Worker, gpu: Worker) -> Self {
        let by_gpu = (1.0 / gpu.row).min(1.0 / gpu.memory);
        let left = (1.0 - by_gpu * gpu.memory).max(0.0);
        let by_cpu = (1.0 / cpu.row).min(left / cpu.memory);
        let rate = by_gpu + by_cpu;
        Self { rate, gpu_share: by_gpu / rate, waits: by_cpu < 1.0 / cpu.row }
    }

    fn work(&self, cost: &mut Cost, name: &'static str, rows: f64) {
        let bound = if self.waits { Bound::CpuMemory } else { Bound::BothProcessors };
        cost.phase(name, &[(bound, rows / self.rate)]);
    }
}
