//! Why bytes cannot be compressed or decompressed.

/// Why bytes cannot be compressed or decompressed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Something else than a compressed column.
    #[error("these {0} bytes are no compressed column")]
    Foreign(usize),
    /// A column of a later version of the format.
    #[error(
        "the column is compressed in version {found} of the format, and this program reads version {}",
        crate::VERSION
    )]
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
    #[error("the compressed column is damaged: {0}")]
    Damaged(&'static str),
    /// The GPU has no room, or fails.
    #[error(transparent)]
    Device(#[from] overspill_machine::Error),
    /// More than the format can describe.
    #[error("{0} bytes are too many for one compressed column: it holds at most {max}", max = crate::MOST_BYTES)]
    TooLarge(usize),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
