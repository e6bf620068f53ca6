//! The error type of the join algorithms.

use std::error::Error;
use std::fmt;

use arrow::error::ArrowError;

/// The result of a join algorithm.
pub type Result<T, E = JoinError> = std::result::Result<T, E>;

/// The reason why a join could not continue.
#[derive(Debug)]
pub enum JoinError {
    /// An Arrow kernel refused its input.
    Arrow(ArrowError),
    /// The host could not evaluate an expression, write a spill file or provide memory; the cause is the host's error.
    Host(Box<dyn Error + Send + Sync>),
    /// A limit of this implementation was exceeded; the text states which.
    Limit(String),
    /// A limit of the rows in memory was exceeded, and they cannot be partitioned into files; the text states which limit.
    Unspillable(String),
}

impl JoinError {
    /// Wraps an error of the host.
    pub fn host(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Host(error.into())
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arrow(error) => error.fmt(f),
            Self::Host(error) => error.fmt(f),
            Self::Limit(text) | Self::Unspillable(text) => f.write_str(text),
        }
    }
}

impl Error for JoinError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Arrow(error) => Some(error),
            Self::Host(error) => Some(error.as_ref()),
            Self::Limit(_) | Self::Unspillable(_) => None,
        }
    }
}

impl From<overspill_machine::Error> for JoinError {
    fn from(error: overspill_machine::Error) -> Self {
        Self::host(error)
    }
}

impl From<ArrowError> for JoinError {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error)
    }
}
