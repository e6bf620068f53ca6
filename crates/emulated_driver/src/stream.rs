//! Streams: queues that do their work only when a caller waits for it.

use std::ffi::c_uint;

use cudarc::driver::sys::{CUevent, CUresult, CUstream};

use crate::context;
use crate::error::give;
use crate::queue::{Operation, Stream, name};
use crate::settings::{SYNCHRONISATION, settings};
use crate::state::call;
use crate::work::{enqueue, run};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(place: *mut CUstream, _flags: c_uint) -> CUresult {
    call(|state| {
        let handle = state.handle();
        state.streams.insert(handle, Stream::of(context::current()?));
        // SAFETY: as the caller promises.
        unsafe { give(place, handle as CUstream) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(stream: CUstream) -> CUresult {
    call(|state| {
        // Pending work is still done.
        let name = name(stream)?;
        run(state, name, None)?;
        state.streams.remove(&name).map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    call(|state| {
        state.clock.wait();
        if SYNCHRONISATION.strikes() {
            let error = settings().failure;
            state.lose_device(context::current()?, error);
            return Err(error);
        }
        let name = name(stream)?;
        run(state, name, None)
    })
}

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
