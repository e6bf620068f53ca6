//! Events: marks in streams.

use std::ffi::c_uint;
use std::time::Instant;

use cudarc::driver::sys::{CUevent, CUresult, CUstream};

use crate::device;
use crate::error::{Outcome, call, give};
use crate::state::State;
use crate::stream::{self, Operation};

pub struct Event {
    device: usize,
    /// The number of recordings, and the stream of the last.
    recordings: u64,
    stream: u64,
    /// The last recording that its stream has reached, and its time.
    reached: u64,
    at: Option<Instant>,
}

impl Event {
    fn of(device: usize) -> Self {
        Self { device, recordings: 0, stream: 0, reached: 0, at: None }
    }

    /// The device of the event's context.
    pub fn device(&self) -> usize {
        self.device
    }

    pub fn recordings(&self) -> u64 {
        self.recordings
    }

    pub fn reached(&mut self, recording: u64) {
        self.reached = self.reached.max(recording);
        self.at = Some(Instant::now());
    }

    fn is_reached(&self) -> bool {
        self.reached >= self.recordings
    }
}

/// Does the work that precedes a recording of an event.
pub fn run_until_recorded(state: &mut State, event: u64, recording: u64) -> Outcome {
    match state.events.get(&event) {
        Some(found) if found.reached < recording => {
            let stream = found.stream;
            stream::run(state, stream, Some((event, recording)))
        }
        _ => Ok(()),
    }
}

fn find(state: &State, event: CUevent) -> Result<&Event, CUresult> {
    state.events.get(&(event as u64)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(place: *mut CUevent, _flags: c_uint) -> CUresult {
    call(|state| {
        let handle = state.handle();
        state.events.insert(handle, Event::of(device::current()?));
        // SAFETY: as the caller promises.
        unsafe { give(place, handle as CUevent) }
    })
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: CUevent) -> CUresult {
    call(|state| state.events.remove(&(event as u64)).map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE))
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult {
    call(|state| {
        let handle = event as u64;
        let name = stream::name(stream)?;
        let found = state.events.get_mut(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        found.recordings += 1;
        found.stream = name;
        let recording = found.recordings;
        stream::enqueue(state, stream, Operation::Record { event: handle, recording })
    })
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: CUevent) -> CUresult {
    call(|state| {
        let recordings = find(state, event)?.recordings;
        run_until_recorded(state, event as u64, recordings)
    })
}

/// # Safety
/// As in the CUDA driver API.
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

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(place: *mut f32, start: CUevent, end: CUevent) -> CUresult {
    call(|state| {
        let (start, end) = (find(state, start)?, find(state, end)?);
        let (Some(from), Some(to)) = (start.at, end.at) else { return Err(CUresult::CUDA_ERROR_INVALID_HANDLE) };
        if !start.is_reached() || !end.is_reached() {
            return Err(CUresult::CUDA_ERROR_NOT_READY);
        }
        // SAFETY: as the caller promises.
        unsafe { give(place, to.saturating_duration_since(from).as_secs_f32() * 1e3) }
    })
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(place: *mut f32, start: CUevent, end: CUevent) -> CUresult {
    // SAFETY: the caller promises the same to this function.
    unsafe { cuEventElapsedTime_v2(place, start, end) }
}
