//! Errors of driver calls.

use std::ffi::{CStr, c_char};

use cudarc::driver::sys::CUresult;

pub type Outcome = Result<(), CUresult>;

/// Fails with an error unless the condition holds.
pub fn ensure(condition: bool, error: CUresult) -> Outcome {
    if condition { Ok(()) } else { Err(error) }
}

/// Writes a result to the caller's place.
///
/// # Safety
/// `place` is null or valid for a write of `T`.
pub unsafe fn give<T>(place: *mut T, value: T) -> Outcome {
    ensure(!place.is_null(), CUresult::CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: `place` is not null, and the caller promises that it is valid.
    unsafe { place.write(value) };
    Ok(())
}

/// What a driver call returns.
pub fn code(outcome: Outcome) -> CUresult {
    outcome.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

fn text(error: CUresult) -> (&'static CStr, &'static CStr) {
    match error {
        CUresult::CUDA_SUCCESS => (c"CUDA_SUCCESS", c"no error"),
        CUresult::CUDA_ERROR_INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        CUresult::CUDA_ERROR_NOT_INITIALIZED => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        CUresult::CUDA_ERROR_NO_DEVICE => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        CUresult::CUDA_ERROR_INVALID_DEVICE => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => (c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"the device is lost"),
        CUresult::CUDA_ERROR_INVALID_CONTEXT => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        CUresult::CUDA_ERROR_NOT_FOUND => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        CUresult::CUDA_ERROR_NOT_READY => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        CUresult::CUDA_ERROR_NOT_SUPPORTED => (c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
        CUresult::CUDA_ERROR_LAUNCH_FAILED => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
        CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => {
            (c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch")
        }
        CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => (
            c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
            c"part or all of the requested memory range is already mapped",
        ),
        CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => {
            (c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"pointer does not correspond to a registered memory region")
        }
        CUresult::CUDA_ERROR_INVALID_HANDLE => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        _ => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
    }
}

/// # Safety
/// `place` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: CUresult, place: *mut *const c_char) -> CUresult {
    // SAFETY: the caller promises the same to this function.
    code(unsafe { give(place, text(error).0.as_ptr()) })
}

/// # Safety
/// `place` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: CUresult, place: *mut *const c_char) -> CUresult {
    // SAFETY: the caller promises the same to this function.
    code(unsafe { give(place, text(error).1.as_ptr()) })
}
