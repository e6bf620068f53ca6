//! The context that is current on a thread.

use std::cell::Cell;

use cudarc::driver::sys::{CUcontext, CUresult};

thread_local! {
    /// The current context of this thread: the device's number plus one, or 0 for none.
    pub static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The device whose context is current.
pub fn current() -> Result<usize, CUresult> {
    match CURRENT.get() {
        0 => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
        number => Ok(number - 1),
    }
}

/// The device of a context.
pub fn device_of(context: CUcontext) -> Result<usize, CUresult> {
    (context as usize).checked_sub(1).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}
