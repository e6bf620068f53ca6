//! Copy and compute, overlapped.

use std::ops::Range;
use std::sync::Arc;

use crate::driver::{Device, Event, Stream};
use crate::memory::{DeviceBuffer, PinnedPart, Slab, SlabPool, View};
use crate::transfer::{Source, TransferMethod};
use crate::{Error, Result};

/// Chunks begin at pages of every size that memory is pinned in.
const CHUNK_ALIGNMENT: u64 = 2 << 20;

/// More threads than any memory needs to be copied at its speed.
const MOST_THREADS: usize = 256;

/// How a pipeline is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineShape {
    /// Bytes of a chunk: a multiple of 2 MiB.
    pub chunk_bytes: u64,
    /// Chunks on their way or being worked on at once, 2 at least for any overlap. Methods that copy take as many chunks of
    /// GPU memory, staged copy also as many slabs of pinned memory.
    pub chunks: usize,
    /// Threads that copy to pinned slabs.
    pub threads: usize,
}

impl Default for PipelineShape {
    /// Chunks of 8 MiB, three at once, four threads: a chunk takes long enough for its launch to be nothing, and all that
    /// is taken is 24 MiB.
    fn default() -> Self {
        Self { chunk_bytes: 8 << 20, chunks: 3, threads: 4 }
    }
}

/// A method with all the memory it needs. Nothing is allocated while it runs, and nothing registered but what dynamic
/// pinning pins.
#[derive(Debug)]
pub struct TransferPipeline {
    device: Arc<Device>,
    method: TransferMethod,
    shape: PipelineShape,
    lanes: Vec<Lane>,
}

/// The way of every n-th chunk. Its stream does what it is asked in order: copy, then compute, then copy the next.
#[derive(Debug)]
struct Lane {
    stream: Arc<Stream>,
    chunk: Option<DeviceBuffer>,
    slab: Option<Slab>,
}

impl TransferPipeline {
    /// Takes the memory that the shape says.
    ///
    /// # Errors
    /// If the device lacks the method, the shape is none, or there is no memory for it.
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
        let slabs = match method {
            TransferMethod::StagedCopy => {
                let bytes = usize::try_from(shape.chunk_bytes).map_err(Error::invalid)?;
                Some(SlabPool::new(device, shape.chunks, bytes)?)
            }
            _ => None,
        };
        let lanes = (0..shape.chunks)
            .map(|_| {
                Ok(Lane {
                    chunk: method.copies().then(|| DeviceBuffer::new(device, shape.chunk_bytes)).transpose()?,
                    slab: slabs.as_ref().map(SlabPool::take).transpose()?,
                    stream: Arc::new(Stream::new(device)?),
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { device: Arc::clone(device), method, shape, lanes })
    }

    /// The device that it brings data to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// How it is cut.
    pub fn shape(&self) -> PipelineShape {
        self.shape
    }

    /// The method.
    pub fn method(&self) -> TransferMethod {
        self.method
    }

    /// Hands `consume` the source chunk by chunk: the stream to ask for its work, where the chunk starts in the source, and
    /// the chunk. It is there until what `consume` asks of this stream is done, and so is everything when this returns.
    /// Chunks of different lanes are worked on at the same time and in no order.
    ///
    /// # Errors
    /// If the method cannot read this source, a copy fails, `consume` does, or what it asked for.
    pub fn run(&mut self, source: Source<'_>, consume: impl FnMut(&Stream, u64, View<'_>) -> Result<()>) -> Result<()> {
        self.run_part(source, 0..source.bytes(), consume)
    }

    /// As [`TransferPipeline::run`], for a part of the source. Where it starts is a multiple of 4096 bytes for dynamic pinning.
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
        // Dropped before `pinned`, also when `consume` panics: the streams may still be at work on the source.
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
        // When the CPU's part of a lane's last chunk was no longer needed.
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
                // The rest have nothing to do beforehand; `check` has seen to it that the source is of their kind.
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

/// Streams that have nothing left to do once this is dropped.
struct IdleWhenDropped(Vec<Arc<Stream>>);

impl Drop for IdleWhenDropped {
    fn drop(&mut self) {
        for stream in &self.0 {
            // Whoever wants to know of errors has waited himself.
            let _ = stream.synchronize();
        }
    }
}

impl Lane {
    /// Asks the stream to copy to the lane's chunk.
    fn copy(&mut self, from: &[u8]) -> Result<()> {
        let chunk = self.chunk.as_mut().ok_or_else(|| Error::invalid("this method has no memory to copy to"))?;
        // SAFETY: the pipeline waits for its streams before the source or the chunk is used otherwise, also after an error.
        unsafe { chunk.copy_from(&self.stream, from) }
    }

    /// Copies to the lane's slab, and asks the stream to copy from there.
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
