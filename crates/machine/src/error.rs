use std::fmt::Display;

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;

/// The result of calls of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the machine, as a sentence for the user.
// The message of each variant documents the variant and its fields.
#[allow(missing_docs)]
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("there is no NVIDIA driver: libcuda.so.1 cannot be loaded; install the driver to use a GPU")]
    NoDriver,
    #[error("the stand-in for the GPU driver cannot be loaded from {path}: {reason}")]
    NoEmulatedDriver { path: String, reason: String },
    #[error("the GPU driver was chosen before: this process runs on {chosen}; start another one to run on {asked}")]
    DriverChosenBefore { chosen: &'static str, asked: &'static str },
    #[error("the NVIDIA driver supports CUDA {}.{}, Overspill needs {}.{} (driver 580) or later; update the driver", found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10)]
    DriverTooOld { found: i32, needed: i32 },
    #[error("the NVIDIA driver lacks the function {symbol}; update the driver")]
    MissingSymbol { symbol: &'static str },
    #[error("the NVIDIA driver finds no GPU")]
    NoDevice,
    #[error("there is no GPU {ordinal}: the machine has {count}, numbered from 0")]
    NoSuchDevice { ordinal: usize, count: usize },
    #[error("{bytes} bytes of GPU memory were asked for, and {held} of the {limit} that its limit allows are in use")]
    OverBudget { bytes: u64, held: u64, limit: u64 },
    #[error(
        "GPU {device} has no {bytes} bytes of memory left: other programs use it, or its limit ({limit}) is more than it has"
    )]
    OutOfDeviceMemory { device: usize, bytes: u64, limit: u64 },
    #[error("the system did not provide {bytes} bytes of memory: {reason}")]
    OutOfHostMemory { bytes: u64, reason: String },
    #[error("{what} needs {needed} bytes of {of}, and there are {available}")]
    TooSmall { what: &'static str, needed: u64, of: &'static str, available: u64 },
    #[error("{count} {what} are more than {most}")]
    TooMany { what: &'static str, count: u64, most: u64 },
    #[error("GPU {device} has no {what}")]
    Unsupported { device: usize, what: &'static str },
    #[error("GPU {device} does not reach the memory of GPU {peer}: their link has no peer access")]
    NoPeerAccess { device: usize, peer: usize },
    #[error("the transfer method {method} does not work here: {reason}")]
    TransferRefused { method: &'static str, reason: String },
    /// The caller violated a documented precondition.
    #[error("{0}")]
    Invalid(String),
    #[error("GPU {device} is lost ({reason}); work goes on without it")]
    DeviceLost { device: usize, reason: String },
    #[error("the GPU was given to other queries")]
    TakenBack,
    #[error("{what} failed on GPU {device}: {reason}")]
    Driver { what: &'static str, device: usize, reason: String },
}

impl Error {
    /// Converts the error of a driver call. `what` names the operation that failed.
    pub(crate) fn driver(what: &'static str, device: usize, error: DriverError) -> Self {
        let reason = reason(error);
        match error.0 {
            // After these errors the context is unusable, whatever is called.
            CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_UNKNOWN
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => Self::DeviceLost { device, reason },
            _ => Self::Driver { what, device, reason },
        }
    }

    pub(crate) fn invalid(reason: impl Display) -> Self {
        Self::Invalid(reason.to_string())
    }
}

fn reason(error: DriverError) -> String {
    match (error.error_name(), error.error_string()) {
        (Ok(name), Ok(text)) => format!("{}, {}", text.to_string_lossy(), name.to_string_lossy()),
        _ => format!("driver error {}", error.0 as u32),
    }
}
