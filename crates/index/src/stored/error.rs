//! Why an index file is not written or read.

/// Why an index file is not written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// The system reports an error.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The file has another format or version, or has been cut off.
    #[error("it is not an index of this version, or has been cut off")]
    NotAnIndex,
    /// A part of the file is not as it was written.
    #[error("it is damaged: the checksum of {part} does not match")]
    Damaged {
        /// The part.
        part: String,
    },
    /// The description is of another version.
    #[error("its description is not understood: {0}")]
    Description(#[from] serde_json::Error),
    /// The keys that are written are not in order.
    #[error("the keys of an index are not sorted: {key} follows {last}")]
    NotSorted {
        /// A key.
        key: u64,
        /// The one before it.
        last: u64,
    },
    /// No index of the first keys can be built.
    #[error(transparent)]
    Index(#[from] overspill_machine::Error),
}

/// A result of this module.
pub type Result<T, E = StoredError> = std::result::Result<T, E>;

impl StoredError {
    /// That a part of the file is not as it was written.
    pub(super) fn damaged(part: impl Into<String>) -> Self {
        Self::Damaged { part: part.into() }
    }
}
