//! Events: marks in streams.

use std::ffi::c_uint;

use cudarc::driver::sys::{CUevent, CUresult, CUstream};

use crate::context;
use crate::error::{ensure, give};
use crate::queue::{Event, Operation, name};
use crate::state::{State, call};
use crate::work::{enqueue, run_until_recorded};

fn find(state: &State, event: CUevent) -> Result<&Event, CUresult> {
    state.events.get(&(event as u64)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(place: *mut CUevent, _flags: c_uint) -> CUresult {
    call(|state| {
        let handle = state.handle();
        state.events.insert(handle, Event { device: context::current()?, ..Event::default() });
        // SAFETY: as the caller promises.
        unsafe { give(place, handle as CUevent) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    call(|state| state.events.remove(&(event as u64)).map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    call(|state| {
        let handle = event as u64;
        let name = name(stream)?;
        let found = state.events.get_mut(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        found.recordings += 1;
        found.stream = name;
        let recording = found.recordings;
        enqueue(state, stream, Operation::Record { event: handle, recording })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    call(|state| {
        state.clock.wait();
        let recordings = find(state, event)?.recordings;
        run_until_recorded(state, event as u64, recordings)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: CUevent) -> CUresult {
    call(|state| {
        let found = find(state, event)?;
        if found.is_reached() {
            return Ok(());
        }
        let recordings = found.recordings;
        // Do the work now, so that a caller that only polls eventually sees the event reached.
        run_until_recorded(state, event as u64, recordings)?;
        Err(CUresult::CUDA_ERROR_NOT_READY)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(place: *mut f32, start: CUevent, end: CUevent) -> CUresult {
    call(|state| {
        let (start, end) = (find(state, start)?, find(state, end)?);
        let (Some(from), Some(to)) = (start.at, end.at) else { return Err(CUresult::CUDA_ERROR_INVALID_HANDLE) };
        ensure(start.is_reached() && end.is_reached(), CUresult::CUDA_ERROR_NOT_READY)?;
        // SAFETY: as the caller promises.
        unsafe { give(place, to.saturating_duration_since(from).as_secs_f32() * 1e3) }
    })
}
