//! Measurements of CPUs and their memory.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::chain::read_at_random;
use super::{Chain, LatencyCurve, LatencyPoint, MeasuredMemory, Measurements, MemoryRates, Processor};
use crate::memory::{HostBuffer, PageSize};
use crate::topology::{CacheKind, Topology};
use crate::{Error, Result};

/// The amount of work per measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuEffort {
    /// Bytes of the array that is read and copied.
    pub array_bytes: u64,
    /// Bytes of the longest range whose latency is measured.
    pub longest_range: u64,
    /// Number of runs. The best one counts.
    pub runs: usize,
    /// Number of random reads per thread, and of steps of a chain.
    pub reads: u64,
}

impl CpuEffort {
    /// Uses an array several times as large as the largest cache, but at most an eighth of the memory.
    pub fn for_machine(topology: &Topology) -> Self {
        let data = topology.cpu.caches.iter().filter(|cache| cache.kind != CacheKind::Instruction);
        let largest = data.map(|cache| cache.bytes * cache.instances as u64).max().unwrap_or(32 << 20);
        let eighth = topology.memory.bytes.unwrap_or(1 << 30) / 8;
        let array_bytes = (4 * largest).clamp(256 << 20, 1 << 30).min(eighth).next_multiple_of(2 << 20);
        Self { array_bytes, longest_range: (1u64 << 30).min(eighth), runs: 3, reads: 1 << 22 }
    }
}

/// Stride that touches each small page once.
const SMALL_STRIDE: u64 = 4096;
/// Stride for the latency of random reads: each place has its own cache line.
const LINE: u64 = 64;

/// Measures each node's processors with each node's memory, pageable, in small and in huge pages. Takes some seconds per pair.
///
/// # Errors
/// If there is not enough memory.
pub fn measure_cpu(topology: &Topology, effort: CpuEffort) -> Result<Measurements> {
    let mut measurements = Measurements::default();
    let nodes = &topology.memory.nodes;
    let with_processors = nodes_with_processors(topology);
    let with_memory: Vec<Option<usize>> = match nodes.len() {
        0 | 1 => vec![None],
        _ => nodes.iter().filter(|node| node.bytes.is_some()).map(|node| Some(node.number)).collect(),
    };
    for (node, processors) in &with_processors {
        for memory_node in &with_memory {
            for pages in [PageSize::Small, PageSize::Huge] {
                let pair = Pair { node: *node, processors, memory_node: *memory_node, pages, effort };
                measurements.rates.push(pair.rates(topology.cpu.threads)?);
                // Address translation belongs to the processor and does not depend on the node of the memory, so measure it
                // once.
                if memory_node.is_none_or(|memory| memory == *node) {
                    measurements.latency.push(pair.latency()?);
                }
            }
        }
    }
    Ok(measurements)
}

/// Memory rates of all processors together in huge pages, each using the memory of its own node. They bound a program that runs
/// on the whole machine.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemoryBounds {
    /// Bytes read in order per second.
    pub read: f64,
    /// Bytes copied per second, each counted once.
    pub copy: f64,
    /// Independent reads of 8 bytes at random places per second.
    pub random_reads: f64,
}

/// Measures only bandwidths and random access, one node after the other. Takes a second or two per node.
///
/// # Errors
/// If there is not enough memory.
pub fn measure_bounds(topology: &Topology, effort: CpuEffort) -> Result<MemoryBounds> {
    let nodes = nodes_with_processors(topology);
    let mut bounds = MemoryBounds::default();
    for (node, processors) in &nodes {
        let memory_node = (nodes.len() > 1).then_some(*node);
        let pair = Pair { node: *node, processors, memory_node, pages: PageSize::Huge, effort };
        let (of_node, _) = pair.bounds(topology.cpu.threads)?;
        bounds.read += of_node.read;
        bounds.copy += of_node.copy;
        bounds.random_reads += of_node.random_reads;
    }
    Ok(bounds)
}

/// Returns the nodes that have processors, with their processors. A single node has an empty list, which means any processor.
fn nodes_with_processors(topology: &Topology) -> Vec<(usize, &[usize])> {
    let nodes = &topology.memory.nodes;
    match nodes.len() {
        0 | 1 => vec![(0, &[])],
        _ => nodes
            .iter()
            .filter(|node| !node.processors.is_empty())
            .map(|node| (node.number, node.processors.as_slice()))
            .collect(),
    }
}

/// The processors of a node, and a memory to measure them with.
struct Pair<'a> {
    node: usize,
    /// Empty to let the system choose.
    processors: &'a [usize],
    memory_node: Option<usize>,
    pages: PageSize,
    effort: CpuEffort,
}

impl Pair<'_> {
    fn processor(&self) -> Processor {
        Processor::Cpu { node: self.node }
    }

    fn memory(&self) -> MeasuredMemory {
        MeasuredMemory::Host { node: self.memory_node.unwrap_or(self.node), pages: self.pages, pinned: false }
    }

    fn buffer(&self, bytes: u64) -> Result<HostBuffer> {
        let mut buffer = HostBuffer::new(usize::try_from(bytes).map_err(Error::invalid)?, self.pages)?;
        if let Some(node) = self.memory_node {
            // Containers often may not place memory. The rates are then those of the nodes where the pages are.
            let _ = buffer.place_on(node);
        }
        Ok(buffer)
    }

    /// Measures bandwidths and random access. Also returns the memory that they were measured in.
    fn bounds(&self, threads_of_machine: usize) -> Result<(MemoryBounds, HostBuffer)> {
        let threads = if self.processors.is_empty() { threads_of_machine } else { self.processors.len() }.max(1);
        let bytes = self.effort.array_bytes;
        let (mut from, mut to) = (self.buffer(bytes)?, self.buffer(bytes)?);
        let part = (from.as_slice::<u64>().len() / threads).max(1);
        let mut parts: Vec<(&mut [u64], &mut [u64])> =
            from.as_mut_slice::<u64>().chunks_mut(part).zip(to.as_mut_slice::<u64>().chunks_mut(part)).collect();
        parts.truncate(threads);
        let touched: u64 = parts.iter().map(|(from, _)| size_of_val(*from) as u64).sum();

        self.together(&mut parts, |(from, to)| {
            from.fill(1);
            to.fill(2);
        });
        let read = self.together(&mut parts, |(from, _)| {
            black_box(from.iter().fold(0u64, |sum, value| sum.wrapping_add(*value)));
        });
        let copy = self.together(&mut parts, |(from, to)| to.copy_from_slice(from));
        let reads = self.effort.reads;
        let random = self.together(&mut parts, |(from, _)| {
            black_box(read_at_random(from, reads, &mut ChaCha8Rng::seed_from_u64(1)));
        });
        let count = parts.len() as f64;
        drop(parts);
        let bounds = MemoryBounds {
            read: touched as f64 / read.as_secs_f64(),
            copy: touched as f64 / copy.as_secs_f64(),
            random_reads: reads as f64 * count / random.as_secs_f64(),
        };
        Ok((bounds, from))
    }

    fn rates(&self, threads_of_machine: usize) -> Result<MemoryRates> {
        let (bounds, mut array) = self.bounds(threads_of_machine)?;
        let chain = Chain { range: self.effort.array_bytes, stride: LINE };
        let latency = self.chase(array.as_mut_slice(), chain);
        Ok(MemoryRates {
            processor: self.processor(),
            memory: self.memory(),
            read: bounds.read,
            copy: bounds.copy,
            random_reads: bounds.random_reads,
            latency,
        })
    }

    fn latency(&self) -> Result<LatencyCurve> {
        let mut buffer = self.buffer(self.effort.longest_range)?;
        buffer.as_mut_slice::<u64>().fill(0);
        let ranges = std::iter::successors(Some(1u64 << 20), |range| Some(range * 2));
        let points = ranges
            .take_while(|range| *range <= self.effort.longest_range)
            .map(|range| {
                let chain = Chain { range, stride: SMALL_STRIDE };
                LatencyPoint { range, nanoseconds: self.chase(buffer.as_mut_slice(), chain) }
            })
            .collect();
        Ok(LatencyCurve { processor: self.processor(), memory: self.memory(), stride: SMALL_STRIDE, points })
    }

    /// Returns the nanoseconds per step of the chain.
    fn chase(&self, array: &mut [u64], chain: Chain) -> f64 {
        let start = chain.lay(array);
        // Once around the chain, but at least 2^16 steps, and no more than the effort allows.
        let steps = chain.places().clamp(1 << 16, self.effort.reads.max(1 << 16));
        let mut arrays = [array];
        let took = self.together(&mut arrays, |array| {
            black_box(Chain::follow(array, start, steps));
        });
        took.as_secs_f64() * 1e9 / steps as f64
    }

    /// Runs `work` on all parts at once, with one thread each. Returns the time of the slowest thread in the best run.
    fn together<Part: Send>(&self, parts: &mut [Part], work: impl Fn(&mut Part) + Sync) -> Duration {
        (0..self.effort.runs.max(1))
            .map(|_| {
                let barrier = Barrier::new(parts.len());
                std::thread::scope(|scope| {
                    let threads: Vec<_> = parts
                        .iter_mut()
                        .map(|part| {
                            scope.spawn(|| {
                                stay_on(self.processors);
                                barrier.wait();
                                let begin = Instant::now();
                                work(part);
                                begin.elapsed()
                            })
                        })
                        .collect();
                    threads
                        .into_iter()
                        .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                        .max()
                })
                .unwrap_or_default()
            })
            .min()
            .unwrap_or_default()
    }
}

/// Pins the thread to these processors; does nothing if there are none. If the system refuses, the rates are those of the
/// processors that the thread runs on.
fn stay_on(processors: &[usize]) {
    if processors.is_empty() {
        return;
    }
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for processor in processors {
        if *processor < libc::CPU_SETSIZE as usize {
            // SAFETY: within the set, as checked.
            unsafe { libc::CPU_SET(*processor, &mut set) };
        }
    }
    // SAFETY: the set is valid and the size is that of its type; 0 is the calling thread.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
}
