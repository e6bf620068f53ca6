//! Cascaded compression (paper 4, section 4): all layers of all columns in one launch.

mod arguments;
mod compress;
mod decompress;

pub(crate) use arguments::{ChunkTask, ColumnTask};
pub use compress::{ColumnInput, CompressedColumn, Compressor};
pub use decompress::{ColumnOutput, Decompressed, Decompressor};

/// Integers of a chunk. Equals `kChunk`.
const CHUNK: u64 = 4096;

/// Threads of a block. Equals `kCodecThreads`.
const THREADS: u32 = 256;

/// The sizes of integers, in bytes, for which there are kernels.
const WIDTHS: [u64; 4] = [1, 2, 4, 8];
