//! Pairs that kernels found.

use overspill_kernels::Pairs;
use overspill_machine::Result;
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;

use super::gpu::Gpu;

/// Bytes of a pair in GPU memory.
pub(crate) const PAIR_BYTES: u64 = 16;

/// Room in GPU memory for pairs.
#[derive(Debug)]
pub(crate) struct PairBuffers {
    build: DeviceBuffer,
    probe: DeviceBuffer,
}

/// Pairs in CPU memory: of each the value of the build row and that of the probe row.
#[derive(Debug, Default)]
pub(crate) struct PairBlock {
    pub(crate) build: Vec<u64>,
    pub(crate) probe: Vec<u64>,
}

impl PairBuffers {
    /// Room for so many pairs.
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

    /// Copies so many pairs to the end of a block.
    pub(crate) fn append_to(&self, stream: &Stream, count: usize, block: &mut PairBlock) -> Result<()> {
        let length = block.len();
        let read = |buffer: &DeviceBuffer, column: &mut Vec<u64>| {
            column.resize(length + count, 0);
            buffer.read_into(stream, &mut column[length..])
        };
        let copied = read(&self.build, &mut block.build).and_then(|()| read(&self.probe, &mut block.probe));
        if copied.is_err() {
            block.truncate(length);
        }
        copied
    }
}

impl PairBlock {
    pub(crate) fn len(&self) -> usize {
        self.build.len().min(self.probe.len())
    }

    pub(crate) fn clear(&mut self) {
        self.truncate(0);
    }

    /// Drops all but the first pairs.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.build.truncate(length);
        self.probe.truncate(length);
    }
}
