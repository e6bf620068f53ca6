//! Measures the speed of a GPU's accesses to its own memory and to CPU memory, and the speed of each transfer method.

use std::sync::Arc;
use std::time::Instant;

use overspill_machine::driver::{Device, Stream};
use overspill_machine::measure::{
    Chain, GpuWork, LatencyCurve, LatencyPoint, MeasuredMemory, Measurements, MemoryRates, Processor,
};
use overspill_machine::memory::{Buffer, HostBuffer, PageSize, UnifiedBuffer};
use overspill_machine::transfer::{
    PipelineShape, Source, SourceMemory, TransferMethod, TransferPipeline, TransferRate, TransferRates,
};
use overspill_machine::{Error, Result};

use crate::{AccessPattern, Kernels, MemoryAccess};

/// The extent of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuEffort {
    /// Bytes of the array that is read and copied. Each memory holds two such arrays.
    pub array_bytes: u64,
    /// Bytes of the longest range whose latency is measured.
    pub longest_range: u64,
    /// Bytes between neighbouring places in that range (paper 1, section 3.4.2, uses 16 to 64 MiB).
    pub stride: u64,
    /// The number of runs. The fastest counts.
    pub runs: usize,
    /// Random reads of each group of threads.
    pub reads: u64,
    /// Whether to measure unified memory as well, with at most `array_bytes` of it.
    pub unified: bool,
}

impl Default for GpuEffort {
    /// Takes about ten seconds on PCIe.
    fn default() -> Self {
        Self { array_bytes: 1 << 30, longest_range: 8 << 30, stride: 2 << 20, runs: 3, reads: 1 << 10, unified: false }
    }
}

/// The maximum number of steps along a chain, about half a second on PCIe.
const MOST_STEPS: u64 = 1 << 18;

/// Measures the GPU of these kernels with its own memory and with CPU memory: pinned in small and in huge pages, and pageable
/// if the GPU can read it. `node` is the NUMA node on which the system places memory that this thread touches; the result
/// records it.
///
/// # Errors
/// If memory is not available, or the device fails.
pub fn measure_gpu(kernels: &Kernels, node: usize, effort: GpuEffort) -> Result<Measurements> {
    let device = kernels.device();
    let mut gpu = Gpu {
        device,
        stream: Stream::new(device)?,
        access: MemoryAccess::new(kernels)?,
        processor: Processor::Gpu { ordinal: device.ordinal() },
        effort,
    };
    let mut memories = vec![MeasuredMemory::Gpu { ordinal: device.ordinal() }];
    for pages in [PageSize::Small, PageSize::Huge] {
        memories.push(MeasuredMemory::Host { node, pages, pinned: true });
        if device.properties().coherent {
            memories.push(MeasuredMemory::Host { node, pages, pinned: false });
        }
    }
    let mut measurements = Measurements::default();
    for memory in memories {
        measurements.rates.push(gpu.rates(memory)?);
        measurements.latency.push(gpu.latency(memory)?);
    }
    measurements.transfers.push(gpu.transfers()?);
    measurements.gpu_work.push(gpu.work(node)?);
    Ok(measurements)
}

struct Gpu<'a> {
    device: &'a Arc<Device>,
    stream: Stream,
    access: MemoryAccess,
    processor: Processor,
    effort: GpuEffort,
}

impl Gpu<'_> {
    fn buffer(&self, memory: MeasuredMemory, bytes: u64) -> Result<Buffer> {
        let mut buffer = Buffer::new(self.device, memory.placement(), bytes)?;
        buffer.fill(&self.stream, 1)?;
        Ok(buffer)
    }

    /// The time of the fastest run, in seconds.
    fn best(&self, mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
        (0..self.effort.runs.max(1)).try_fold(f64::INFINITY, |best, _| Ok(best.min(run()?)))
    }

    fn rates(&mut self, memory: MeasuredMemory) -> Result<MemoryRates> {
        let bytes = self.effort.array_bytes;
        let mut from = self.buffer(memory, bytes)?;
        let mut to = self.buffer(memory, bytes)?;
        let (mut read, mut copy, mut random) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
        let mut reads = 0;
        let pattern = AccessPattern { write: false, granularity: 8, misalignment: 0, accesses: self.effort.reads };
        for _ in 0..self.effort.runs.max(1) {
            read = read.min(self.access.timed_read(&self.stream, from.view(self.device)?)?);
            let source = from.view(self.device)?;
            copy = copy.min(self.access.copy(&self.stream, source, &mut to.view_mut(self.device)?)?);
            let mut array = from.view_mut(self.device)?;
            let (count, seconds) = self.access.access_randomly(&self.stream, &mut array, pattern)?;
            (reads, random) = (count, random.min(seconds));
        }
        drop(to);
        // Enough cache lines to exceed any cache of a GPU.
        let latency = self.chase(memory, Chain { range: bytes, stride: 512.min(bytes) })?;
        Ok(MemoryRates {
            processor: self.processor,
            memory,
            read: bytes as f64 / read,
            copy: bytes as f64 / copy,
            random_reads: reads as f64 / random,
            latency,
        })
    }

    /// Further costs of joins: random writes and kernel launches.
    fn work(&mut self, node: usize) -> Result<GpuWork> {
        let ordinal = self.device.ordinal();
        let pinned = !self.device.properties().coherent;
        Ok(GpuWork {
            ordinal,
            random_writes: self.random_writes(MeasuredMemory::Gpu { ordinal })?,
            random_host_writes: self.random_writes(MeasuredMemory::Host { node, pages: PageSize::Huge, pinned })?,
            launch: self.launch()?,
        })
    }

    /// Independent 8-byte writes at random places, per second.
    fn random_writes(&mut self, memory: MeasuredMemory) -> Result<f64> {
        let mut buffer = self.buffer(memory, self.effort.array_bytes)?;
        let pattern = AccessPattern { write: true, granularity: 8, misalignment: 0, accesses: self.effort.reads };
        let mut rate = 0.0f64;
        for _ in 0..self.effort.runs.max(1) {
            let mut array = buffer.view_mut(self.device)?;
            let (count, seconds) = self.access.access_randomly(&self.stream, &mut array, pattern)?;
            rate = rate.max(count as f64 / seconds);
        }
        Ok(rate)
    }

    /// Seconds between launches of a nearly empty kernel.
    fn launch(&mut self) -> Result<f64> {
        const LAUNCHES: u32 = 1000;
        let buffer = self.buffer(MeasuredMemory::Gpu { ordinal: self.device.ordinal() }, 64)?;
        let view = buffer.view(self.device)?;
        let (stream, access) = (&self.stream, &self.access);
        self.best(|| {
            let begin = Instant::now();
            // SAFETY: the buffer lives until the stream is done, which is waited for, also after an error.
            let launched = (0..LAUNCHES).try_for_each(|_| unsafe { access.read(stream, view) });
            stream.synchronize().and(launched)?;
            Ok(begin.elapsed().as_secs_f64() / f64::from(LAUNCHES))
        })
    }

    fn latency(&mut self, memory: MeasuredMemory) -> Result<LatencyCurve> {
        let Self { effort, processor, .. } = *self;
        let mut points = Vec::new();
        let mut range = effort.stride * 16;
        while range <= effort.longest_range {
            let nanoseconds = self.chase(memory, Chain { range, stride: effort.stride })?;
            points.push(LatencyPoint { range, nanoseconds });
            range *= 2;
        }
        Ok(LatencyCurve { processor, memory, stride: effort.stride, points })
    }

    /// Nanoseconds per step of the chain.
    fn chase(&mut self, memory: MeasuredMemory, chain: Chain) -> Result<f64> {
        // One round, so that every place is visited, limited to `MOST_STEPS`.
        let steps = chain.places().clamp(1 << 10, MOST_STEPS);
        let size = usize::try_from(chain.range).map_err(|error| Error::Invalid(error.to_string()))?;
        let mut buffer = Buffer::new(self.device, memory.placement(), chain.range)?;
        let start = match &mut buffer {
            Buffer::Host(host) => chain.lay(host.as_mut_slice()),
            Buffer::Device(device) => {
                let mut laid = HostBuffer::new(size, PageSize::Huge)?;
                let start = chain.lay(laid.as_mut_slice());
                device.write(&self.stream, laid.as_slice::<u64>())?;
                start
            }
        };
        let view = buffer.view(self.device)?;
        let (stream, access) = (&self.stream, &mut self.access);
        let mut best = f64::INFINITY;
        let mut at = start;
        // Each run continues where the last one ended, so that it does not find data that the last run cached.
        for _ in 0..self.effort.runs.max(1) {
            // SAFETY: the chain's indices lie within the array.
            let (end, seconds) = unsafe { access.chase(stream, view, at, steps) }?;
            at = end;
            best = best.min(seconds);
        }
        Ok(best * 1e9 / steps as f64)
    }

    /// Measures each method that the device supports, over a relation of `array_bytes` that a kernel sums.
    fn transfers(&mut self) -> Result<TransferRates> {
        let mut rates = Vec::new();
        for method in TransferMethod::ALL {
            let wanted = method.memory() != SourceMemory::Unified || self.effort.unified;
            if wanted && method.check_device(self.device.properties()).is_ok() {
                let seconds = self.transfer(method)?;
                rates.push(TransferRate { method, bytes_per_second: self.effort.array_bytes as f64 / seconds });
            }
        }
        Ok(TransferRates(rates))
    }

    fn transfer(&mut self, method: TransferMethod) -> Result<f64> {
        let bytes = self.effort.array_bytes;
        let size = usize::try_from(bytes).map_err(|error| Error::Invalid(error.to_string()))?;
        let mut pipeline = TransferPipeline::new(self.device, method, PipelineShape::default())?;
        let mut time = |source: Source<'_>| {
            let begin = Instant::now();
            // SAFETY: the pipeline keeps each chunk until its stream is done, and waits for all before it returns.
            pipeline.run(source, |stream, _, chunk| unsafe { self.access.read(stream, chunk) })?;
            Ok(begin.elapsed().as_secs_f64())
        };
        let mut host = match method.memory() {
            SourceMemory::Unified => {
                let mut buffer = UnifiedBuffer::new(self.device, bytes)?;
                let stream = Stream::new(self.device)?;
                return self.best(|| {
                    // Each run starts with the pages where the CPU wrote them.
                    if self.device.properties().concurrent_unified_access {
                        buffer.evict(&stream)?;
                    }
                    buffer.as_mut_slice::<u64>()?.fill(1);
                    time(Source::Unified(&buffer))
                });
            }
            SourceMemory::Pinned => HostBuffer::pinned(self.device, size, PageSize::Huge)?,
            SourceMemory::Pageable => HostBuffer::new(size, PageSize::Huge)?,
        };
        host.as_mut_slice::<u64>().fill(1);
        self.best(|| time(Source::Host(&host)))
    }
}
