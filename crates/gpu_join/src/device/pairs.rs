//! Matching pairs found by kernels.

use std::collections::VecDeque;

use overspill_kernels::AllocatedPairs;
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::transfer::PooledBuffer;
use overspill_machine::{Error, Result};

use super::gpu::Gpu;

pub(crate) const PAIR_BYTES: u64 = 16;

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

impl PairBlock {
    /// Appends the first `found` pairs of two columns in GPU memory. The block is unchanged if that fails.
    pub(crate) fn append(&mut self, gpu: &Gpu, stream: &Stream, pairs: &AllocatedPairs, found: u64) -> Result<()> {
        let count = usize::try_from(found).map_err(|_| Error::Invalid(format!("{found} pairs")))?;
        if count == 0 {
            return Ok(());
        }
        let [build, probe] = pairs.columns();
        // Reuse the last part if it has room for them.
        if let Some(part) = self.parts.back_mut()
            && part.build.as_slice::<u64>().len().min(part.probe.as_slice::<u64>().len()) >= part.count + count
        {
            let places = part.count..part.count + count;
            let build_places = &mut part.build.as_mut_slice::<u64>()?[places.clone()];
            let probe_places = &mut part.probe.as_mut_slice::<u64>()?[places];
            DeviceBuffer::read_all(stream, &mut [(build, build_places), (probe, probe_places)])?;
            part.count += count;
        } else {
            let column = || gpu.host.take(count * size_of::<u64>());
            let (mut build_column, mut probe_column) = (column()?, column()?);
            let build_places = &mut build_column.as_mut_slice::<u64>()?[..count];
            let probe_places = &mut probe_column.as_mut_slice::<u64>()?[..count];
            DeviceBuffer::read_all(stream, &mut [(build, build_places), (probe, probe_places)])?;
            self.parts.push_back(Part { build: build_column, probe: probe_column, count, taken: 0 });
        }
        self.length += count;
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
