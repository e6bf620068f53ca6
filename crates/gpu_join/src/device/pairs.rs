//! Matching pairs found by kernels.

use std::collections::VecDeque;

use overspill_kernels::Pairs;
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::{Error, Result};

use super::gpu::Gpu;
use super::host_pool::PooledBuffer;

pub(crate) const PAIR_BYTES: u64 = 16;

/// GPU memory buffers for pairs.
#[derive(Debug)]
pub(crate) struct PairBuffers {
    build: DeviceBuffer,
    probe: DeviceBuffer,
}

/// Pairs that were copied to CPU memory. A pair is the value of its build row and the value of its probe row.
#[derive(Debug, Default)]
pub(crate) struct PairBlock {
    parts: VecDeque<Part>,
    /// Number of pairs in all parts.
    length: usize,
}

/// Pairs of one allocation, from one or more copies.
#[derive(Debug)]
struct Part {
    build: PooledBuffer,
    probe: PooledBuffer,
    count: usize,
    /// Number of pairs already taken.
    taken: usize,
}

impl PairBuffers {
    /// Allocates room for `capacity` pairs.
    pub(crate) fn new(gpu: &Gpu, capacity: u64) -> Result<Self> {
        let column = || DeviceBuffer::new(gpu.device(), capacity * PAIR_BYTES / 2);
        Ok(Self { build: column()?, probe: column()? })
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.build.bytes() / (PAIR_BYTES / 2)
    }

    pub(crate) fn pairs(&mut self) -> Pairs<'_> {
        Pairs { build: self.build.view_mut(), probe: self.probe.view_mut() }
    }

    /// Appends `found` pairs to a block. The block is unchanged if that fails.
    pub(crate) fn append_to(&self, gpu: &Gpu, stream: &Stream, found: u64, block: &mut PairBlock) -> Result<()> {
        let count = usize::try_from(found).map_err(|_| Error::Invalid(format!("{found} pairs")))?;
        if count == 0 {
            return Ok(());
        }
        // Reuse the last part if it has room for them.
        if let Some(part) = block.parts.back_mut()
            && part.build.as_slice::<u64>().len().min(part.probe.as_slice::<u64>().len()) >= part.count + count
        {
            let places = part.count..part.count + count;
            self.build.read_into(stream, &mut part.build.as_mut_slice::<u64>()?[places.clone()])?;
            self.probe.read_into(stream, &mut part.probe.as_mut_slice::<u64>()?[places])?;
            part.count += count;
        } else {
            let read = |buffer: &DeviceBuffer| {
                let mut column = gpu.host.take(count * size_of::<u64>())?;
                buffer.read_into(stream, &mut column.as_mut_slice::<u64>()?[..count])?;
                Ok::<_, Error>(column)
            };
            let (build, probe) = (read(&self.build)?, read(&self.probe)?);
            block.parts.push_back(Part { build, probe, count, taken: 0 });
        }
        block.length += count;
        Ok(())
    }
}

/// The error of `pairs` pairs for which there is memory for `available`.
pub(crate) fn too_many_pairs(what: &'static str, pairs: u64, available: u64) -> Error {
    Error::TooSmall { what, needed: pairs * PAIR_BYTES, of: "memory for pairs", available: available * PAIR_BYTES }
}

impl PairBlock {
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Drops pairs from the end until `length` pairs are left.
    pub(crate) fn truncate(&mut self, length: usize) {
        while self.length > length
            && let Some(part) = self.parts.back_mut()
        {
            let dropped = (self.length - length).min(part.count - part.taken);
            part.count -= dropped;
            self.length -= dropped;
            if part.count == part.taken {
                self.parts.pop_back();
            }
        }
    }

    /// Moves at most `limit` pairs from the front of the block to the end of the vectors.
    pub(crate) fn take(&mut self, limit: usize, build: &mut Vec<u64>, probe: &mut Vec<u64>) -> Result<()> {
        let mut left = limit;
        while left > 0
            && let Some(part) = self.parts.front_mut()
        {
            let pairs = part.taken..part.count.min(part.taken + left);
            build.extend_from_slice(&part.build.as_mut_slice::<u64>()?[pairs.clone()]);
            probe.extend_from_slice(&part.probe.as_mut_slice::<u64>()?[pairs.clone()]);
            left -= pairs.len();
            self.length -= pairs.len();
            part.taken = pairs.end;
            if part.taken == part.count {
                self.parts.pop_front();
            }
        }
        Ok(())
    }
}
