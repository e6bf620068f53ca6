//! Overlaps copies and computation.

use std::ops::Range;
use std::sync::Arc;

use crate::driver::{Device, Event, Stream};
use crate::memory::{DeviceBuffer, HostBuffer, PageSize, PinnedPart, View};
use crate::transfer::{Source, TransferMethod};
use crate::{Error, Result};

/// Chunks start at a multiple of every page size that memory is pinned in.
const CHUNK_ALIGNMENT: u64 = 2 << 20;

/// Maximum number of threads that copy. No memory needs as many to be copied at its full speed.
const MOST_THREADS: usize = 256;

/// The dimensions of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineShape {
    /// Bytes per chunk: a multiple of 2 MiB.
    pub chunk_bytes: u64,
    /// Number of chunks in transfer or being processed at once; overlap needs at least 2. Methods that copy allocate as many
    /// chunks of GPU memory. Staged copy also allocates as many slabs of pinned memory.
    pub chunks: usize,
    /// Number of threads that copy to pinned slabs.
    pub threads: usize,
}

impl Default for PipelineShape {
    /// Chunks of 8 MiB, three at once, four threads. Processing a chunk takes much longer than its launch, and the chunks take
    /// only 24 MiB.
    fn default() -> Self {
        Self { chunk_bytes: 8 << 20, chunks: 3, threads: 4 }
    }
}

/// A transfer method with all the memory it needs. Nothing is allocated while it runs, and only dynamic pinning registers
/// memory.
#[derive(Debug)]
pub struct TransferPipeline {
    device: Arc<Device>,
    method: TransferMethod,
    shape: PipelineShape,
    lanes: Vec<Lane>,
}

/// Resources for every n-th chunk. Its stream works in order: copy a chunk, compute, then copy the next.
#[derive(Debug)]
struct Lane {
    stream: Arc<Stream>,
    chunk: Option<DeviceBuffer>,
    /// Pinned memory for staged copy, registered once, as registering takes longer than copying.
    slab: Option<HostBuffer>,
}

impl TransferPipeline {
    /// Allocates the memory for this shape.
    ///
    /// # Errors
    /// If the device does not support the method, the shape is invalid, or there is not enough memory.
    pub fn new(device: &Arc<Device>, method: TransferMethod, shape: PipelineShape) -> Result<Self> {
        method.check_device(device.properties())?;
        if shape.chunk_bytes == 0 || !shape.chunk_bytes.is_multiple_of(CHUNK_ALIGNMENT) || shape.chunks == 0 {
            return Err(Error::Invalid(format!(
                "{} chunks of {} bytes: there must be one, of a multiple of {CHUNK_ALIGNMENT} bytes",
                shape.chunks, shape.chunk_bytes
            )));
        }
        if shape.threads == 0 || shape.threads > MOST_THREADS {
            return Err(Error::Invalid(format!("{} threads that copy: 1 to {MOST_THREADS}", shape.threads)));
        }
        let is_staged = method == TransferMethod::StagedCopy;
        let slab_bytes = usize::try_from(shape.chunk_bytes).map_err(Error::invalid)?;
        let slab = || HostBuffer::pinned(device, slab_bytes, PageSize::Huge);
        let lanes = (0..shape.chunks)
            .map(|_| {
                Ok(Lane {
                    chunk: method.copies().then(|| DeviceBuffer::new(device, shape.chunk_bytes)).transpose()?,
                    slab: is_staged.then(slab).transpose()?,
                    stream: Arc::new(Stream::new(device)?),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { device: Arc::clone(device), method, shape, lanes })
    }

    /// The device that receives the data.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The dimensions of the pipeline.
    pub fn shape(&self) -> PipelineShape {
        self.shape
    }

    /// The transfer method.
    pub fn method(&self) -> TransferMethod {
        self.method
    }

    /// Calls `consume` for each chunk of the source, with the stream for its work, the offset of the chunk in the source, and
    /// the chunk. The chunk is valid until the work that `consume` queues on this stream is done. All work is done when this
    /// returns. Chunks of different lanes are processed at the same time and in no particular order.
    ///
    /// # Errors
    /// If the method cannot read this source, or if a copy, `consume`, or work that it queued fails.
    pub fn run(&mut self, source: Source<'_>, consume: impl FnMut(&Stream, u64, View<'_>) -> Result<()>) -> Result<()> {
        self.run_part(source, 0..source.bytes(), consume)
    }

    /// As [`TransferPipeline::run`], for a part of the source. For dynamic pinning, it must start at a multiple of 4096 bytes.
    ///
    /// # Errors
    /// As [`TransferPipeline::run`], or if the part is not within the source.
    pub fn run_part(
        &mut self,
        source: Source<'_>,
        part: Range<u64>,
        mut consume: impl FnMut(&Stream, u64, View<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(first) = self.lanes.first() else { return Ok(()) };
        self.method.check(first.stream.device().properties(), &source)?;
        if part.start > part.end || part.end > source.bytes() {
            return Err(Error::Invalid(format!("bytes {part:?} of a source of {}", source.bytes())));
        }
        let mut pinned: Vec<Option<PinnedPart<'_>>> = self.lanes.iter().map(|_| None).collect();
        // Dropped before `pinned`, also if `consume` panics: the streams may still be using the source.
        let _idle = IdleWhenDropped(self.lanes.iter().map(|lane| Arc::clone(&lane.stream)).collect());
        let ran = self.run_chunks(source, part, &mut pinned, &mut consume);
        let waited = self.lanes.iter().map(|lane| lane.stream.synchronize()).fold(Ok(()), Result::and);
        ran.and(waited)
    }

    fn run_chunks<'a>(
        &mut self,
        source: Source<'a>,
        part: Range<u64>,
        pinned: &mut [Option<PinnedPart<'a>>],
        consume: &mut impl FnMut(&Stream, u64, View<'_>) -> Result<()>,
    ) -> Result<()> {
        // For each lane, the point at which its last chunk's slab or pinned pages are no longer needed.
        let mut copied: Vec<Option<Event>> = self.lanes.iter().map(|_| None).collect();
        let mut offset = part.start;
        for number in (0..self.lanes.len()).cycle() {
            if offset >= part.end {
                break;
            }
            let bytes = self.shape.chunk_bytes.min(part.end - offset);
            let lane = &mut self.lanes[number];
            if let Some(event) = copied[number].take() {
                event.synchronize()?;
            }
            pinned[number] = None;
            match (self.method, source) {
                (TransferMethod::PageableCopy | TransferMethod::PinnedCopy, Source::Host(buffer)) => {
                    lane.copy(buffer.range(offset, bytes)?)?;
                }
                (TransferMethod::StagedCopy, Source::Host(buffer)) => {
                    lane.stage(buffer.range(offset, bytes)?, self.shape.threads)?;
                    copied[number] = Some(lane.stream.record()?);
                }
                (TransferMethod::DynamicPinning, Source::Host(buffer)) => {
                    let part = buffer.pin_part(lane.stream.device(), offset, bytes)?;
                    let range = pinned[number].insert(part).range();
                    lane.copy(range)?;
                    copied[number] = Some(lane.stream.record()?);
                }
                (TransferMethod::UnifiedPrefetch, Source::Unified(buffer)) => {
                    buffer.prefetch(&lane.stream, offset, bytes)?;
                }
                // The other methods need no preparation. `check` has ensured that the source has the right kind of memory.
                _ => {}
            }
            let view = match (&lane.chunk, source) {
                (Some(chunk), _) => chunk.view().slice(0, bytes)?,
                (None, Source::Host(buffer)) => buffer.view(lane.stream.device())?.slice(offset, bytes)?,
                (None, Source::Unified(buffer)) => buffer.view().slice(offset, bytes)?,
            };
            consume(&lane.stream, offset, view)?;
            offset += bytes;
        }
        Ok(())
    }
}

/// Waits for its streams when dropped.
struct IdleWhenDropped(Vec<Arc<Stream>>);

impl Drop for IdleWhenDropped {
    fn drop(&mut self) {
        for stream in &self.0 {
            // Errors are ignored here: `run_part` returns those of its own wait.
            let _ = stream.synchronize();
        }
    }
}

impl Lane {
    /// Queues a copy to the lane's chunk.
    fn copy(&mut self, from: &[u8]) -> Result<()> {
        let chunk = self.chunk.as_mut().ok_or_else(|| Error::invalid("this method has no memory to copy to"))?;
        // SAFETY: the pipeline waits for its streams before the source or the chunk is used otherwise, also after an error.
        unsafe { chunk.copy_from(&self.stream, from) }
    }

    /// Copies to the lane's slab, and queues a copy from there to the lane's chunk.
    fn stage(&mut self, from: &[u8], threads: usize) -> Result<()> {
        let slab = self.slab.as_mut().ok_or_else(|| Error::invalid("this method has no slab to copy to"))?;
        let staged = &mut slab.as_mut_slice::<u8>()[..from.len()];
        let part = from.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            let mut parts = staged.chunks_mut(part).zip(from.chunks(part));
            let own = parts.next();
            for (to, from) in parts {
                scope.spawn(|| to.copy_from_slice(from));
            }
            if let Some((to, from)) = own {
                to.copy_from_slice(from);
            }
        });
        let chunk = self.chunk.as_mut().ok_or_else(|| Error::invalid("this method has no memory to copy to"))?;
        // SAFETY: the pipeline waits for the copy before the slab is written again, and for its streams before it ends.
        unsafe { chunk.copy_from(&self.stream, &slab.range(0, from.len() as u64)?[..from.len()]) }
    }
}
