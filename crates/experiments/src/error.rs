use std::path::PathBuf;

/// The result of an experiment.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an experiment yields no figure, as a sentence for the user.
#[allow(missing_docs)]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{0}")]
    Machine(#[from] overspill_machine::Error),
    #[error("cannot write {path}: {reason}")]
    Write { path: PathBuf, reason: String },
    #[error("the plot cannot be drawn: {0}")]
    Plot(String),
    #[error("the scale must be above 0 and at most {most}, not {scale}")]
    Scale { scale: f64, most: f64 },
    #[error("there is no device to check: {0}")]
    NoDevice(String),
    /// A result that an experiment verifies is wrong.
    #[error("{what} gave a wrong answer")]
    Wrong { what: String },
}

impl Error {
    /// Whether the GPU cannot do it by its nature, which is no fault.
    pub fn is_missing(&self) -> bool {
        use overspill_machine::Error::{TransferRefused, Unsupported};
        matches!(self, Self::Machine(Unsupported { .. } | TransferRefused { .. }))
    }

    /// An error of the drawing library.
    pub(crate) fn plot(error: impl std::fmt::Display) -> Self {
        Self::Plot(error.to_string())
    }
}
