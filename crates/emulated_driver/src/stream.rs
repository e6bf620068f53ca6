//! Streams: queues that do their work only when a caller waits for it.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::{CUevent, CUresult, CUstream};

use crate::context;
use crate::error::give;
use crate::queue::{Operation, Stream, name};
use crate::settings::SYNCHRONISATION;
use crate::state::call;
use crate::work::{enqueue, run};

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(place: *mut CUstream, _flags: c_uint) -> CUresult {
    call(|state| {
        let handle = state.handle();
        state.streams.insert(handle, Stream::of(context::current()?));
        // SAFETY: as the caller promises.
        unsafe { give(place, handle as CUstream) }
    })
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(place: *mut CUstream, flags: c_uint, _priority: c_int) -> CUresult {
    // SAFETY: passed on.
    unsafe { cuStreamCreate(place, flags) }
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    call(|state| {
        // Pending work is still done.
        let name = name(stream)?;
        run(state, name, None)?;
        state.streams.remove(&name).map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    })
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    call(|state| {
        if SYNCHRONISATION.strikes() {
            state.lose_device(context::current()?, CUresult::CUDA_ERROR_LAUNCH_FAILED);
            return Err(CUresult::CUDA_ERROR_LAUNCH_FAILED);
        }
        let name = name(stream)?;
        run(state, name, None)
    })
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(stream: CUstream) -> CUresult {
    call(|state| {
        let name = name(stream)?;
        let idle = state.streams.get(&name).is_none_or(|stream| stream.queue.is_empty());
        // Do the work now, so that a caller that only polls eventually sees the stream idle.
        run(state, name, None)?;
        if idle { Ok(()) } else { Err(CUresult::CUDA_ERROR_NOT_READY) }
    })
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: CUstream, event: CUevent, _flags: c_uint) -> CUresult {
    call(|state| {
        let handle = event as u64;
        let recording = state.events.get(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.recordings;
        // Waiting for an event that was never recorded returns at once.
        if recording == 0 {
            return Ok(());
        }
        enqueue(state, stream, Operation::Wait { event: handle, recording })
    })
}
