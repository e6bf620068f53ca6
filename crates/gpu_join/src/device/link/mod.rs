//! What crosses the link compressed, by cascades of layers (paper 4, section 4). The paper compresses what goes from node to node;
//! here the CPU compresses, and the GPU decompresses what it reads over its own link.

mod column;
mod compressor;

pub(crate) use column::{Decompressed, LinkColumn, PIECE_ROWS, device_error};
pub(crate) use compressor::ColumnOf;
pub use compressor::{LinkCompression, LinkCompressor};
