//! The multiprocessors that the blocks of a launch occupy.

use overspill_machine::driver::{Device, Function, LaunchShape, Properties};
use overspill_machine::{Error, Result};

/// The number of multiprocessors that launches may occupy. It is all of them, or fewer to leave the others to kernels of
/// another stream. Paper 1, section 5.2, so overlaps the second pass over some partitions with the join of earlier
/// partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    multiprocessors: u32,
    /// Scratchpad memory that a confined launch requests at least. A confined launch has one block per multiprocessor. Each
    /// block requests more than half of the multiprocessor's scratchpad, so that no second block fits beside it. 0 for
    /// launches that are not confined.
    exclusive_scratchpad: u64,
}

impl Share {
    /// All multiprocessors of the device.
    pub(crate) fn all(device: &Device) -> Self {
        Self { multiprocessors: device.properties().multiprocessors, exclusive_scratchpad: 0 }
    }

    /// `multiprocessors` of the device's multiprocessors.
    pub(crate) fn of(device: &Device, multiprocessors: u32) -> Result<Self> {
        let Properties { multiprocessors: all, scratchpad_per_block, scratchpad_per_multiprocessor, .. } =
            *device.properties();
        if multiprocessors == 0 || multiprocessors > all {
            return Err(Error::Invalid(format!(
                "kernels confined to {multiprocessors} multiprocessors: the GPU has {all}, and they need one at least"
            )));
        }
        // A multiple of the allocation unit of every generation.
        let exclusive_scratchpad = (scratchpad_per_multiprocessor / 2 + 1).next_multiple_of(1 << 10);
        if exclusive_scratchpad > scratchpad_per_block {
            return Err(Error::TooSmall {
                what: "confining kernels to some multiprocessors",
                needed: exclusive_scratchpad,
                of: "scratchpad memory a block",
                available: scratchpad_per_block,
            });
        }
        Ok(Self { multiprocessors, exclusive_scratchpad })
    }

    fn is_confined(self) -> bool {
        self.exclusive_scratchpad != 0
    }

    /// Blocks per multiprocessor, for a kernel with room for `blocks` blocks on an unconfined multiprocessor.
    pub(crate) fn per_multiprocessor(self, blocks: u32) -> u32 {
        if self.is_confined() { 1 } else { blocks }
    }

    /// The maximum number of concurrent blocks, for a kernel with room for `per_multiprocessor` blocks on a multiprocessor.
    pub(crate) fn blocks(self, per_multiprocessor: u32) -> u32 {
        self.multiprocessors * self.per_multiprocessor(per_multiprocessor)
    }

    /// A launch that fills the multiprocessors, to hide the latency of memory: blocks beyond what they hold at once would run
    /// after the others, on a part of the device. The kernel must divide its work by the size of the grid and the block, use
    /// no scratchpad memory and use at most 64 registers per thread. A confined block gets more threads, as it has no
    /// neighbours on its multiprocessor.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn full(self, kernel: &Function, threads: u32) -> Result<LaunchShape> {
        const MOST_THREADS: u32 = 1024;
        let resident = kernel.resident_blocks(threads, 0)?;
        let threads = if self.is_confined() { (threads * resident).min(MOST_THREADS) } else { threads };
        Ok(self.shape(self.blocks(resident), threads, 0))
    }

    /// A launch with at most `blocks` blocks. The kernel must divide its work by the size of the grid.
    pub(crate) fn shape(self, blocks: u32, threads: u32, scratchpad: u64) -> LaunchShape {
        let blocks = if self.is_confined() { blocks.min(self.multiprocessors) } else { blocks };
        LaunchShape { blocks, threads, scratchpad: scratchpad.max(self.exclusive_scratchpad) }
    }
}
