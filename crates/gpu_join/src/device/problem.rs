//! Work that the CPU must do in place of a GPU.

use overspill_machine::Error;

use super::gpu::Gpu;
use super::request::is_refusal;
use super::turns::DeviceShare;

/// The reason why a GPU did not do something that the CPU can do; the CPU must do it.
#[derive(Debug, Clone)]
pub enum DeviceProblem {
    /// The GPU has no room, or lacks a feature.
    Refused(Error),
    /// The GPU failed.
    Failed(Error),
    /// The GPU was given to other queries.
    TakenBack,
}

impl DeviceProblem {
    /// The error.
    pub fn error(&self) -> &Error {
        match self {
            Self::Refused(error) | Self::Failed(error) => error,
            Self::TakenBack => &Error::TakenBack,
        }
    }

    /// The problem that an error of a GPU is, of a query with this share. A GPU that is lost is not used again.
    pub(crate) fn of(gpu: &Gpu, share: &DeviceShare, error: Error) -> Self {
        gpu.note(&error, share);
        match error {
            Error::TakenBack => Self::TakenBack,
            error if is_refusal(&error) => Self::Refused(error),
            error => Self::Failed(error),
        }
    }
}
