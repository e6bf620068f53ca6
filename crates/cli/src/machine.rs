//! `overspill machine`: what the machine is made of.

use std::fmt::{Display, Formatter};
use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use overspill_machine::topology::{
    Cache, CacheKind, Gpu, Topology, TranslationCache, TranslationKind, TransparentHugePages,
};

use crate::failure::{Failure, Outcome};

#[derive(Debug, Args)]
pub struct MachineArgs {
    /// As JSON, sizes in bytes
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &MachineArgs) -> Outcome<()> {
    let topology = Topology::of_this_machine();
    let text = if arguments.json {
        let json = serde_json::to_string_pretty(&topology);
        json.map_err(|error| Failure::message(format!("the machine cannot be written as JSON: {error}")))? + "\n"
    } else {
        Report(&topology).to_string()
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::file("write to", Path::new("standard output"), &error))
}

/// The machine as lines of a name and what there is.
struct Report<'a>(&'a Topology);

impl Display for Report<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Topology { cpu, memory, translation_caches, gpus, no_gpu_because } = self.0;
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
        Ok(())
    }
}

fn describe_cache(cache: &Cache) -> String {
    let kind = match cache.kind {
        CacheKind::Data => " data",
        CacheKind::Instruction => " instructions",
        CacheKind::Unified => "",
    };
    let sharing = match cache.shared_by {
        0 | 1 => String::new(),
        threads => format!(", each for {threads} threads"),
    };
    format!("L{}{kind}: {} x {}{sharing}", cache.level, cache.instances, size(cache.bytes))
}

fn describe_translation(buffer: &TranslationCache) -> String {
    let kind = match buffer.kind {
        TranslationKind::Data => " data",
        TranslationKind::Instruction => " instructions",
        TranslationKind::Unified => "",
    };
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

/// A size as people write it, in powers of 1024.
fn size(bytes: u64) -> String {
    bytesize::ByteSize::b(bytes).display().iec().to_string()
}

#[cfg(test)]
mod tests {
    use overspill_machine::topology::{Cpu, Memory};

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
";
        assert_eq!(Report(&topology).to_string(), expected);
    }
}
