//! `overspill machine`: shows the machine's hardware.

use std::fmt::{Display, Formatter};
use std::process::Command;

use clap::Args;
use overspill::advisor::measure_row_work;
use overspill::query_work::{MEASURED_ROWS, measure_queries};
use overspill::{DeviceKind, OverspillRuntime};
use overspill_advisor::{Cpu, ProbeRows};
use overspill_kernels::{GpuEffort, Kernels, measure_gpu};
use overspill_machine::driver::Driver;
use overspill_machine::measure::{
    CodecRates, CpuEffort, LevelRates, MeasuredMemory, Measurements, NetworkRates, Processor, QueryWork, measure_cpu,
};
use overspill_machine::memory::PageSize;
use overspill_machine::topology::{Cache, CacheKind, Gpu, Topology, TranslationCache, TransparentHugePages};
use serde::Serialize;
use tokio::runtime::Handle;

use crate::failure::{Failure, Outcome};
use crate::output::print_report;
use crate::ranks::{MpiArgs, MpiProcess};

#[derive(Debug, Args)]
pub struct MachineArgs {
    /// Measure the memories, what joining a row costs, the GPU's memories if there is one, and queries, alone and together: some
    /// ten seconds each; kept for the next time. Where mpirun starts it: the network between the ranks, beside what is kept
    #[arg(long)]
    measure: bool,

    /// Print JSON, with sizes in bytes
    #[arg(long)]
    json: bool,

    /// Map memory as joins on a GPU do, and end: some drivers do not survive it
    #[arg(long, hide = true)]
    check_mapping: bool,

    #[command(flatten, next_help_heading = "MPI")]
    mpi: MpiArgs,
}

/// The state that sessions share. A separate process finds out whether the GPU's driver maps pages of CPU memory.
pub fn runtime() -> OverspillRuntime {
    OverspillRuntime::with_mapping_probe(|| {
        let mut command = Command::new(std::env::current_exe().unwrap_or_default());
        command.args(["machine", "--check-mapping"]);
        command
    })
}

pub fn run(arguments: &MachineArgs) -> Outcome<()> {
    if arguments.check_mapping {
        return overspill::device::check_driver().map_err(|error| Failure::message(error.to_string()));
    }
    let topology = Topology::of_this_machine();
    let path = Measurements::path();
    let save = |measured: &Measurements| match &path {
        Some(path) => measured.save(path, &topology).map_err(|error| Failure::file("write", path, &error)),
        None => Ok(()),
    };
    let kept = || path.as_ref().and_then(|path| Measurements::load(path, &topology));
    let mpi = if arguments.measure { MpiProcess::start(&arguments.mpi)? } else { None };
    let measured = if let Some(mpi) = mpi {
        let rates = mpi.measure()?;
        if !mpi.finish()? {
            return Ok(());
        }
        let mut measured = kept().unwrap_or_default();
        measured.add_network(rates);
        save(&measured)?;
        Some(measured)
    } else if arguments.measure {
        let mut measured = measure(&topology)?;
        measured.networks = kept().unwrap_or_default().networks;
        // What queries take is compared with what the rates say.
        save(&measured)?;
        measured.query_work = Some(measure_query_work(&topology)?);
        save(&measured)?;
        Some(measured)
    } else {
        kept()
    };
    let report = Report::new(&topology, measured.as_ref());
    print_report("the machine", &report, arguments.json)
}

/// Measures the CPU's memories, and those that each GPU uses.
fn measure(topology: &Topology) -> Outcome<Measurements> {
    let failed = |error: overspill_machine::Error| Failure::message(error.to_string());
    let mut measured = measure_cpu(topology, CpuEffort::for_machine(topology)).map_err(failed)?;
    for gpu in &topology.gpus {
        let limit = gpu.properties.memory / 10 * 9;
        let device = Driver::nvidia().and_then(|driver| driver.device(gpu.ordinal, limit)).map_err(failed)?;
        let rates = Kernels::load(&device)
            .and_then(|kernels| measure_gpu(&kernels, gpu.node.unwrap_or(0), GpuEffort::default()))
            .map_err(failed)?;
        measured.rates.extend(rates.rates);
        measured.latency.extend(rates.latency);
        measured.transfers.extend(rates.transfers);
        measured.gpu_work.extend(rates.gpu_work);
    }
    measured.row_work =
        Some(measure_row_work(topology.cpu.threads).map_err(|error| Failure::message(error.to_string()))?);
    Ok(measured)
}

/// Measures queries, beside rates that are kept already.
fn measure_query_work(topology: &Topology) -> Outcome<QueryWork> {
    let gpu = (!topology.gpus.is_empty()).then_some(DeviceKind::Gpu);
    let shared = runtime();
    // This is a thread that may block.
    let queries = Handle::current().block_on(measure_queries(&shared, gpu, topology.cpu.threads, MEASURED_ROWS));
    queries.map_err(|error| Failure::message(format!("queries could not be measured: {error}")))
}

/// The machine as lines of names and values.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    topology: &'a Topology,
    measured: Option<&'a Measurements>,
    joins: Option<Joins>,
}

/// The rates of joins in memory derived from the measurements.
#[derive(Debug, Serialize)]
struct Joins {
    /// Nanoseconds per probe row over all processors, without and with partitioning.
    no_partition_nanoseconds: f64,
    radix_nanoseconds: f64,
    /// The size in bytes of a hash table beyond which probe rows are partitioned.
    partitioned_beyond: Option<u64>,
}

impl<'a> Report<'a> {
    fn new(topology: &'a Topology, measured: Option<&'a Measurements>) -> Self {
        let cpu = measured.and_then(|measured| Cpu::measured(&topology.cpu, measured));
        let rows = cpu.map(|cpu| ProbeRows::new(&cpu, topology.cpu.threads));
        let joins = rows.map(|ProbeRows { no_partition, radix, partitioned_beyond }| Joins {
            no_partition_nanoseconds: no_partition * 1e9,
            radix_nanoseconds: radix * 1e9,
            partitioned_beyond,
        });
        Self { topology, measured, joins }
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Topology { cpu, memory, translation_caches, gpus, no_gpu_because } = self.topology;
        let mut line = |name: &str, what: String| writeln!(f, "{name:<12}{what}");
        let counts = [count(cpu.sockets, "socket"), count(cpu.cores, "core"), count(cpu.threads, "thread")].join(", ");
        line("Processor", format!("{}, {counts}", cpu.model.as_deref().unwrap_or("of unknown model")))?;
        for (number, cache) in cpu.caches.iter().enumerate() {
            line(if number == 0 { "Caches" } else { "" }, describe_cache(cache))?;
        }
        for (number, buffer) in translation_caches.iter().enumerate() {
            line(if number == 0 { "TLB" } else { "" }, describe_translation(buffer))?;
        }
        let bytes = memory.bytes.map_or_else(|| "of unknown size".to_owned(), size);
        line("Memory", format!("{bytes}, {}", count(memory.nodes.len().max(1), "node")))?;
        if memory.nodes.len() > 1 {
            for node in &memory.nodes {
                let bytes = node.bytes.map_or_else(|| "no memory".to_owned(), size);
                let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
                let processors = count(node.processors.len(), "processor");
                line("", format!("node {}: {bytes}, {processors}, distances {}", node.number, distances.join(" ")))?;
            }
        }
        let huge = match memory.transparent_huge_pages {
            Some(TransparentHugePages::Always) => "huge pages wherever they fit",
            Some(TransparentHugePages::Madvise) => "huge pages where a program asks for them",
            Some(TransparentHugePages::Never) => "no huge pages unless set aside: large random access will be slower",
            None => "nothing known of huge pages",
        };
        line("Pages", format!("{}; {huge}", size(memory.page)))?;
        for pool in &memory.huge_page_pools {
            line("", format!("{} of {} set aside, {} free", pool.pages, size(pool.page), pool.free))?;
        }
        for gpu in gpus {
            line(&format!("GPU {}", gpu.ordinal), describe_gpu(gpu))?;
        }
        if let Some(reason) = no_gpu_because {
            line("GPU", format!("none: {reason}"))?;
        }
        match self.measured {
            Some(measured) => {
                for (number, what) in describe_measurements(measured).into_iter().enumerate() {
                    line(if number == 0 { "Measured" } else { "" }, what)?;
                }
            }
            None => line("Measured", "nothing yet: overspill machine --measure".to_owned())?,
        }
        match &self.joins {
            Some(joins) => line("Joins", describe_joins(joins)),
            None => Ok(()),
        }
    }
}

fn describe_joins(joins: &Joins) -> String {
    let verdict = match joins.partitioned_beyond {
        Some(bytes) => format!("partitioned if the hash table is larger than {}", size(bytes)),
        None => "never partitioned in memory".to_owned(),
    };
    format!(
        "a probe row takes {:.1} ns of all processors at random, {:.1} ns partitioned: {verdict}",
        joins.no_partition_nanoseconds, joins.radix_nanoseconds
    )
}

fn describe_measurements(measured: &Measurements) -> Vec<String> {
    let rates = measured.rates.iter().map(|rates| {
        format!(
            "{} on {}: reads {:.1} GB/s, copies {:.1} GB/s, {:.0} M random reads/s, {:.0} ns a read",
            describe_processor(rates.processor),
            describe_memory(rates.memory),
            rates.read / 1e9,
            rates.copy / 1e9,
            rates.random_reads / 1e6,
            rates.latency,
        )
    });
    let processors = measured.latency.iter().map(|curve| curve.processor).collect::<Vec<_>>();
    let distinct = processors.iter().enumerate().filter(|(at, processor)| !processors[..*at].contains(processor));
    let reach = distinct.filter_map(|(_, processor)| {
        let reach = measured.small_page_reach(*processor)?;
        Some(format!("{}: small pages as fast as huge ones up to {}", describe_processor(*processor), size(reach)))
    });
    let transfers = measured.transfers.iter().enumerate().flat_map(|(ordinal, rates)| {
        rates
            .0
            .iter()
            .map(move |rate| format!("GPU {ordinal} by {}: {:.1} GB/s", rate.method, rate.bytes_per_second / 1e9))
    });
    let work = measured.row_work.map(|work| {
        let [partition, lookup] = [work.partition, work.lookup].map(|seconds| seconds * 1e9);
        format!("a probe row costs a processor {partition:.1} ns to partition, {lookup:.1} ns to look up in its cache")
    });
    let gpu_work = measured.gpu_work.iter().map(|work| {
        let [own, host] = [work.random_writes, work.random_host_writes].map(|rate| rate / 1e6);
        let (gpu, launch) = (work.ordinal, work.launch * 1e6);
        format!("GPU {gpu} writes {own:.0} M/s at random to its memory, {host:.0} M/s to the CPU's, launches in {launch:.1} us")
    });
    let queries = measured.query_work.iter().flat_map(describe_queries);
    let networks = measured.networks.iter().flat_map(describe_network);
    rates.chain(reach).chain(work).chain(transfers).chain(gpu_work).chain(queries).chain(networks).collect()
}

fn describe_network(rates: &NetworkRates) -> Vec<String> {
    let NetworkRates { ranks, ranks_per_node, ranks_per_machine, within, across, partition, codec } = *rates;
    let place = match across {
        Some(_) => format!("nodes of {ranks_per_node}"),
        None => "one node".to_owned(),
    };
    let codec = codec.map(|CodecRates { compress, decompress }| {
        format!(", compresses {:.1} GB/s, decompresses {:.1} GB/s", compress / 1e9, decompress / 1e9)
    });
    let work = format!(
        "{} on {place}, {ranks_per_machine} a machine: each partitions {:.1} GB/s{}",
        count(ranks as usize, "rank"),
        partition / 1e9,
        codec.unwrap_or_default()
    );
    let level = |name: &str, level: LevelRates| {
        let LevelRates { bytes_per_second, latency, message } = level;
        let (rate, [latency, message]) = (bytes_per_second / 1e9, [latency, message].map(|seconds| seconds * 1e6));
        format!(
            "{ranks} ranks {name}: each sends {rate:.2} GB/s, a message arrives after {latency:.1} us, many take {message:.1} us each"
        )
    };
    let within = within.map(|rates| level("within nodes", rates));
    let across = across.map(|rates| level("across nodes", rates));
    [Some(work), within, across].into_iter().flatten().collect()
}

fn describe_queries(work: &QueryWork) -> Vec<String> {
    let costs = work.operators.iter().map(|(name, cost)| format!("{name} {cost:.1} ns"));
    let gpu = work.gpu.map(|gpu| {
        let [join, aggregate] = [gpu.join_loss, gpu.aggregate_loss].map(|loss| loss * 100.0);
        format!(
            "on the GPU each further join costs {join:.1} % of its speed, each aggregate {aggregate:.1} %; as fast as on the CPU \
             are {}, {}, {} of both",
            count(gpu.joins, "join"),
            count(gpu.aggregates, "aggregate"),
            gpu.both
        )
    });
    let costs = format!("a row costs a thread: {}", costs.collect::<Vec<_>>().join(", "));
    let overlap = format!("several queries at once do {:.2} times as much as one", work.overlap);
    [costs, overlap].into_iter().chain(gpu).collect()
}

fn describe_processor(processor: Processor) -> String {
    match processor {
        Processor::Cpu { node } => format!("processors of node {node}"),
        Processor::Gpu { ordinal } => format!("GPU {ordinal}"),
    }
}

fn describe_memory(memory: MeasuredMemory) -> String {
    match memory {
        MeasuredMemory::Gpu { ordinal } => format!("memory of GPU {ordinal}"),
        MeasuredMemory::Host { node, pages, pinned } => {
            let pages = match pages {
                PageSize::Small => "small",
                PageSize::Huge => "huge",
            };
            format!("memory of node {node}, {pages} pages{}", if pinned { ", pinned" } else { "" })
        }
    }
}

fn describe_cache(cache: &Cache) -> String {
    let sharing = match cache.shared_by {
        0 | 1 => String::new(),
        threads => format!(", each for {threads} threads"),
    };
    format!("L{}{}: {} x {}{sharing}", cache.level, describe_kind(cache.kind), cache.instances, size(cache.bytes))
}

fn describe_kind(kind: CacheKind) -> &'static str {
    match kind {
        CacheKind::Data => " data",
        CacheKind::Instruction => " instructions",
        CacheKind::Unified => "",
    }
}

fn describe_translation(buffer: &TranslationCache) -> String {
    let kind = describe_kind(buffer.kind);
    let pages: Vec<String> = buffer.pages.iter().map(|page| size(*page)).collect();
    format!("L{}{kind}: {} pages of {}", buffer.level, buffer.entries, pages.join(" or "))
}

fn describe_gpu(gpu: &Gpu) -> String {
    let properties = &gpu.properties;
    let link = match gpu.link {
        Some(link) => {
            let generation = link.generation.map_or_else(String::new, |generation| format!(" {generation}.0"));
            format!("PCIe{generation} x{} at {} GT/s", link.lanes, link.gigatransfers)
        }
        None => "a link of unknown kind".to_owned(),
    };
    let coherence = if properties.coherent { "reads pageable memory coherently" } else { "reads pinned memory only" };
    format!(
        "{}, {}, compute capability {}.{}, {}, {} of scratchpad a block, L2 {}; {link}, {coherence}",
        properties.name,
        size(properties.memory),
        properties.compute_capability.0,
        properties.compute_capability.1,
        count(properties.multiprocessors as usize, "multiprocessor"),
        size(properties.scratchpad_per_block),
        size(properties.l2_cache),
    )
}

fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Formats a size in powers of 1024.
fn size(bytes: u64) -> String {
    bytesize::ByteSize::b(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests {
    use overspill_machine::measure::{
        GpuQueries, GpuWork, LatencyCurve, LatencyPoint, MemoryRates, QueryWork, RowWork,
    };
    use overspill_machine::topology::{Cpu, Memory};
    use overspill_machine::transfer::{TransferMethod, TransferRate, TransferRates};

    use super::*;

    #[test]
    fn a_machine_without_gpu_says_so() {
        let topology = Topology {
            cpu: Cpu {
                model: Some("Imaginary 9000".to_owned()),
                sockets: 1,
                cores: 2,
                threads: 4,
                caches: vec![Cache {
                    level: 2,
                    kind: CacheKind::Unified,
                    bytes: 2 << 20,
                    line: 64,
                    shared_by: 2,
                    instances: 2,
                }],
            },
            memory: Memory {
                bytes: Some(16 << 30),
                nodes: vec![],
                page: 4096,
                transparent_huge_pages: Some(TransparentHugePages::Madvise),
                huge_page_pools: vec![],
            },
            translation_caches: vec![],
            gpus: vec![],
            no_gpu_because: Some("there is no driver".to_owned()),
        };
        let expected = "\
Processor   Imaginary 9000, 1 socket, 2 cores, 4 threads
Caches      L2: 2 x 2.0 MiB, each for 2 threads
Memory      16.0 GiB, 1 node
Pages       4.0 KiB; huge pages where a program asks for them
GPU         none: there is no driver
Measured    nothing yet: overspill machine --measure
";
        assert_eq!(Report::new(&topology, None).to_string(), expected);
        let memory = |pages| MeasuredMemory::Host { node: 0, pages, pinned: false };
        let curve = |pages| LatencyCurve {
            processor: Processor::Cpu { node: 0 },
            memory: memory(pages),
            stride: 4096,
            points: vec![LatencyPoint { range: 64 << 20, nanoseconds: 9.0 }],
        };
        let measured = Measurements {
            rates: vec![MemoryRates {
                processor: Processor::Cpu { node: 0 },
                memory: memory(PageSize::Huge),
                read: 12.34e9,
                copy: 6e9,
                random_reads: 186e6,
                latency: 81.4,
            }],
            latency: vec![curve(PageSize::Small), curve(PageSize::Huge)],
            transfers: vec![TransferRates(vec![TransferRate {
                method: TransferMethod::ZeroCopy,
                bytes_per_second: 55.5e9,
            }])],
            row_work: Some(RowWork { partition: 20e-9, lookup: 18.2e-9 }),
            gpu_work: vec![GpuWork { ordinal: 0, random_writes: 9e9, random_host_writes: 1e8, launch: 4e-6 }],
            query_work: Some(QueryWork {
                operators: [("build".to_owned(), 41.0), ("filter".to_owned(), 3.25)].into(),
                overlap: 1.2,
                gpu: Some(GpuQueries {
                    join_cost: 1.5,
                    aggregate_cost: 0.5,
                    join_loss: 0.01,
                    aggregate_loss: 0.2,
                    joins: 8,
                    aggregates: 1,
                    both: 3,
                }),
            }),
            networks: vec![NetworkRates {
                ranks: 4,
                ranks_per_node: 2,
                ranks_per_machine: 4,
                within: Some(LevelRates { bytes_per_second: 2.5e9, latency: 15e-6, message: 3.25e-6 }),
                across: None,
                partition: 1.1e9,
                codec: None,
            }],
        };
        let expected = "\
Measured    processors of node 0 on memory of node 0, huge pages: reads 12.3 GB/s, copies 6.0 GB/s, 186 M random reads/s, 81 ns a read
            processors of node 0: small pages as fast as huge ones up to 64.0 MiB
            a probe row costs a processor 20.0 ns to partition, 18.2 ns to look up in its cache
            GPU 0 by zero-copy: 55.5 GB/s
            GPU 0 writes 9000 M/s at random to its memory, 100 M/s to the CPU's, launches in 4.0 us
            a row costs a thread: build 41.0 ns, filter 3.2 ns
            several queries at once do 1.20 times as much as one
            on the GPU each further join costs 1.0 % of its speed, each aggregate 20.0 %; as fast as on the CPU are 8 joins, 1 aggregate, 3 of both
            4 ranks on one node, 4 a machine: each partitions 1.1 GB/s
            4 ranks within nodes: each sends 2.50 GB/s, a message arrives after 15.0 us, many take 3.2 us each
Joins       a probe row takes 5.4 ns of all processors at random, 9.5 ns partitioned: never partitioned in memory
";
        let report = Report::new(&topology, Some(&measured)).to_string();
        assert!(report.ends_with(expected), "{report}");
    }
}
