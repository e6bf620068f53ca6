//! Which multiprocessors the blocks of a launch occupy.

use overspill_machine::driver::{Device, LaunchShape, Properties};
use overspill_machine::{Error, Result};

/// The multiprocessors that launches may occupy: all, or so many that kernels of another stream have the others. Paper 1,
/// section 5.2, so overlaps the second pass over some partitions with the join of those before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    multiprocessors: u32,
    /// Confined launches have one block a multiprocessor, which asks for at least this much scratchpad memory: more than
    /// half of what there is, so that no other fits beside it and each block finds a multiprocessor of its own. 0 for
    /// launches that are not confined.
    exclusive_scratchpad: u64,
}

impl Share {
    /// Every multiprocessor.
    pub(crate) fn all(device: &Device) -> Self {
        Self { multiprocessors: device.properties().multiprocessors, exclusive_scratchpad: 0 }
    }

    /// So many of them.
    pub(crate) fn of(device: &Device, multiprocessors: u32) -> Result<Self> {
        let Properties { multiprocessors: all, scratchpad_per_block, scratchpad_per_multiprocessor, .. } =
            *device.properties();
        if multiprocessors == 0 || multiprocessors > all {
            return Err(Error::Invalid(format!(
                "kernels confined to {multiprocessors} multiprocessors: the GPU has {all}, and they need one at least"
            )));
        }
        // In steps that every generation allocates in.
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

    /// How many blocks share a multiprocessor, of a kernel of which so many would fit.
    pub(crate) fn per_multiprocessor(self, blocks: u32) -> u32 {
        if self.is_confined() { 1 } else { blocks }
    }

    /// The most blocks that run at once, of a kernel of which so many would fit one multiprocessor.
    pub(crate) fn blocks(self, per_multiprocessor: u32) -> u32 {
        self.multiprocessors * self.per_multiprocessor(per_multiprocessor)
    }

    /// As many threads as hide the latency of memory, of a kernel that finds its work by the size of the grid and block,
    /// needs no scratchpad memory and takes up to 64 registers a thread: a confined block makes up for its missing
    /// neighbours.
    pub(crate) fn full(self, blocks_per_multiprocessor: u32, threads: u32) -> LaunchShape {
        const MOST_THREADS: u32 = 1024;
        let threads =
            if self.is_confined() { (threads * blocks_per_multiprocessor).min(MOST_THREADS) } else { threads };
        self.shape(self.blocks(blocks_per_multiprocessor), threads, 0)
    }

    /// At most so many blocks, of a kernel that finds its work by the size of the grid.
    pub(crate) fn shape(self, blocks: u32, threads: u32, scratchpad: u64) -> LaunchShape {
        let blocks = if self.is_confined() { blocks.min(self.multiprocessors) } else { blocks };
        LaunchShape { blocks, threads, scratchpad: scratchpad.max(self.exclusive_scratchpad) }
    }
}
