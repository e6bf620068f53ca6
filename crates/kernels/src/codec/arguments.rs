//! What kernels are given, in the layout of `codec/arguments.cuh`.

use overspill_machine::{Error, Result};

/// A chunk, as words.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ChunkTask {
    pub from: u64,
    pub to: u64,
    pub result: u64,
    pub integers: u32,
    pub words: u32,
    pub layers: (u32, u32),
    pub detail: u64,
}

impl ChunkTask {
    /// Bytes of the structure.
    pub const BYTES: u64 = 48;

    pub fn words(&self) -> [u64; 6] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let (runs, deltas) = self.layers;
        let sizes = pair(self.integers, self.words);
        [self.from, self.to, self.result, sizes, pair(runs, deltas), self.detail]
    }
}

/// A column to put together, as words.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ColumnTask {
    pub to: u64,
    pub slots: u64,
    pub sizes: u64,
    pub slot_words: u64,
    pub first_chunk: u64,
    pub chunks: u64,
    pub head: u64,
    pub integers: u64,
    pub words: u64,
}

impl ColumnTask {
    /// Bytes of the structure.
    pub const BYTES: u64 = 72;

    pub fn words(&self) -> [u64; 9] {
        let Self { to, slots, sizes, slot_words, first_chunk, chunks, head, integers, words } = *self;
        [to, slots, sizes, slot_words, first_chunk, chunks, head, integers, words]
    }
}

/// # Errors
/// If there are more than two layers of a kind.
pub(super) fn check_layers(layers: (u32, u32)) -> Result<()> {
    if layers.0.max(layers.1) > 2 {
        return Err(Error::Invalid(format!("{layers:?} layers of compression: there are at most two of a kind")));
    }
    Ok(())
}
