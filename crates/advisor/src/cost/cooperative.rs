//! Joins of CPU and GPU together (paper 2, section 6).
//!
//! Morsels give each processor what it manages, so that rates add up until CPU memory has no time left. A row takes of
//! it `bytes / read + random accesses / random reads`, whoever works on it; where it does not suffice the GPU is served
//! first, which asks for less of it. So a second processor never slows the first, which the papers' scheduler aims at.

use super::cpu::Processors;
use super::gpu_no_partition::{self, probe_bytes, slots_of_probe};
use super::link::{self, Access, HybridTable};
use super::{Site, launch, longest};
use crate::machine::{Cpu, Gpu};
use crate::prediction::{Bound, Cost, LinkBytes, Refusal};

/// Cores that stage what is copied between pageable memory and a GPU (paper 2, section 7.2.1).
const STAGING_CORES: f64 = 4.0;

/// Kernels that the GPU is given for its batches of morsels, more than which hide their launches behind work.
const LAUNCHES: f64 = 2.0;

/// A processor at a phase: seconds that it takes for a row alone, and seconds that CPU memory takes for it.
#[derive(Debug, Clone, Copy)]
struct Worker {
    row: f64,
    memory: f64,
}

/// `het`: one table in CPU memory.
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

/// `gpu_het`: the GPU builds a table in its memory, of which the CPU gets a copy.
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

/// Seconds of a row of which so many bytes cross the link and for which so many slots are accessed.
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

/// Bytes a second from GPU memory to pageable CPU memory.
fn copy_rate(cpu: &Cpu, gpu: &Gpu) -> f64 {
    gpu.link.write.min(cpu.copy * (STAGING_CORES / cpu.cores.max(1) as f64).min(1.0))
}

/// What both manage of a phase.
#[derive(Debug, Clone, Copy)]
struct Team {
    /// Rows a second.
    rate: f64,
    /// The share of rows that the GPU takes.
    gpu_share: f64,
    /// Whether CPU memory holds them up.
    waits: bool,
}

impl Team {
    /// Each as fast as it is alone, while CPU memory has time; the GPU first, which takes less of it for a row.
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
