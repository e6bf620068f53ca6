//! Why bytes cannot be compressed or decompressed.

use std::sync::Arc;

use arrow::error::ArrowError;

/// Why bytes cannot be compressed or decompressed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Something else than a compressed column or block.
    #[error("these {0} bytes are neither a compressed column nor a block of them")]
    Foreign(usize),
    /// A column or block of a later version of the format.
    #[error("it is compressed in version {found} of the format, and this program reads version {}", crate::VERSION)]
    Version {
        /// The version.
        found: u8,
    },
    /// A column of other integers.
    #[error("the column has integers of {found} bytes, and those of {expected} bytes were expected")]
    Width {
        /// Bytes of an integer that was asked for.
        expected: usize,
        /// Bytes of one that is there.
        found: usize,
    },
    /// Bytes are missing, or are not those that were written.
    #[error("compressed data is damaged: {0}")]
    Damaged(&'static str),
    /// An array cannot be written, or one that was read is not valid.
    #[error("compressed data is damaged: {0}")]
    Array(Arc<ArrowError>),
    /// The GPU has no room, or fails.
    #[error(transparent)]
    Device(#[from] overspill_machine::Error),
    /// More than the format can describe.
    #[error("{0} bytes are too many for one compressed column: it holds at most {max}", max = crate::MOST_BYTES)]
    TooLarge(usize),
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        Self::Array(Arc::new(error))
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
