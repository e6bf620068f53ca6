//! Why rows do not arrive.

use std::sync::Arc;

use arrow::error::ArrowError;

use crate::rank::Rank;

/// Why rows do not arrive.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A rank has failed, and with it the job.
    #[error("rank {rank} failed: {cause}")]
    Failed {
        /// The rank.
        rank: Rank,
        /// What it said of it.
        cause: Arc<str>,
    },
    /// A rank stopped sending before the end of its rows.
    #[error("rank {0} stopped before it had sent all its rows")]
    Abandoned(Rank),
    /// Ranks do not agree on what they send each other.
    #[error(
        "rank {rank} sent what was not expected: {what}. All ranks must run the same version with the same settings"
    )]
    Unexpected {
        /// The rank.
        rank: Rank,
        /// What was wrong.
        what: String,
    },
    /// MPI is not there, or fails.
    #[error("{0}")]
    Mpi(String),
    /// Ranks, nodes or keys that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// Rows cannot be compressed, or have changed on their way.
    #[error(transparent)]
    Codec(#[from] overspill_codec::Error),
    /// Rows cannot be partitioned.
    #[error(transparent)]
    Join(Arc<overspill_join::JoinError>),
    /// Rows cannot be put together.
    #[error(transparent)]
    Arrow(Arc<ArrowError>),
    /// A GPU fails, or has no memory.
    #[error(transparent)]
    Device(Arc<overspill_machine::Error>),
}

impl From<overspill_machine::Error> for Error {
    fn from(error: overspill_machine::Error) -> Self {
        Self::Device(Arc::new(error))
    }
}

impl From<overspill_join::JoinError> for Error {
    fn from(error: overspill_join::JoinError) -> Self {
        Self::Join(Arc::new(error))
    }
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(Arc::new(error))
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
