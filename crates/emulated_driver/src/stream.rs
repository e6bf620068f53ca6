//! Streams: queues that do their work only when a caller waits for it.
//!
//! Code that forgets to wait sees old data here every time, while on a GPU it would see it rarely.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::{CUevent, CUresult, CUstream};

use crate::control::SYNCHRONISATION;
use crate::device;
use crate::error::{Outcome, call, give};
use crate::kernel::QueuedLaunch;
use crate::state::State;

/// An operation in a stream's queue.
pub enum Operation {
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    /// A copy from pageable memory, which the driver has read when the call returns.
    CopyStaged {
        to: usize,
        data: Vec<u8>,
    },
    Fill {
        to: usize,
        bytes: usize,
        pattern: [u8; 4],
    },
    Launch(QueuedLaunch),
    /// The recording of an event with this number.
    Record {
        event: u64,
        recording: u64,
    },
    Wait {
        event: u64,
        recording: u64,
    },
}

pub struct Stream {
    device: usize,
    queue: VecDeque<Operation>,
}

impl Stream {
    fn of(device: usize) -> Self {
        Self { device, queue: VecDeque::new() }
    }

    /// The device that does the stream's work.
    pub fn device(&self) -> usize {
        self.device
    }

    pub fn clear(&mut self) {
        self.queue.clear();
    }
}

/// The internal handle of a stream. The default stream of a context has its device's number.
pub fn name(stream: CUstream) -> Result<u64, CUresult> {
    match stream as usize {
        // Null, the legacy default stream, and the per-thread default stream.
        0..=2 => Ok(device::current()? as u64),
        handle => Ok(handle as u64),
    }
}

pub fn enqueue(state: &mut State, stream: CUstream, operation: Operation) -> Outcome {
    let name = name(stream)?;
    if name < 0x1000 {
        state.streams.entry(name).or_insert_with(|| Stream::of(name as usize));
    }
    state.streams.get_mut(&name).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.queue.push_back(operation);
    Ok(())
}

/// Does the work of a stream, up to and including the recording of an event if `until` names one. Work in other streams that
/// it waits for is done first.
pub fn run(state: &mut State, stream: u64, until: Option<(u64, u64)>) -> Outcome {
    let Some(device) = state.streams.get(&stream).map(Stream::device) else { return Ok(()) };
    if let Some(error) = state.lost.get(&device) {
        return Err(*error);
    }
    while let Some(operation) = state.streams.get_mut(&stream).and_then(|stream| stream.queue.pop_front()) {
        match operation {
            Operation::Copy { to, from, bytes } => {
                // SAFETY: the caller of the driver promised both ranges until the stream is done; copies may overlap.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            }
            Operation::CopyStaged { to, data } => {
                // SAFETY: the caller of the driver promised the range until the stream is done.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to as *mut u8, data.len()) };
            }
            Operation::Fill { to, bytes, pattern } => {
                // SAFETY: as above.
                let range = unsafe { std::slice::from_raw_parts_mut(to as *mut u8, bytes) };
                for (at, byte) in range.iter_mut().enumerate() {
                    *byte = pattern[at % 4];
                }
            }
            Operation::Launch(launch) => {
                *state.millijoules.entry(launch.device).or_default() += launch.threads();
                if let Err(error) = launch.run(&mut state.flushes) {
                    state.lose_device(device, error);
                    return Err(error);
                }
            }
            Operation::Record { event, recording } => {
                if let Some(event) = state.events.get_mut(&event) {
                    event.reached(recording);
                }
                if until == Some((event, recording)) {
                    return Ok(());
                }
            }
            Operation::Wait { event, recording } => crate::event::run_until_recorded(state, event, recording)?,
        }
    }
    Ok(())
}

/// Does all pending work of the current device.
pub fn run_current(state: &mut State) -> Outcome {
    let device = device::current()?;
    let streams: Vec<u64> =
        state.streams.iter().filter(|(_, stream)| stream.device == device).map(|(name, _)| *name).collect();
    streams.into_iter().try_for_each(|stream| run(state, stream, None))
}

/// Does all pending work of all devices. Only errors of the current device are returned; calls for another device return its
/// error.
pub fn run_all(state: &mut State) -> Outcome {
    let current = device::current()?;
    let streams: Vec<(u64, usize)> = state.streams.iter().map(|(name, stream)| (*name, stream.device)).collect();
    streams.into_iter().try_for_each(|(stream, device)| {
        let ran = run(state, stream, None);
        if device == current { ran } else { Ok(()) }
    })
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(place: *mut CUstream, _flags: c_uint) -> CUresult {
    call(|state| {
        let handle = state.handle();
        state.streams.insert(handle, Stream::of(device::current()?));
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
            state.lose_device(device::current()?, CUresult::CUDA_ERROR_LAUNCH_FAILED);
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
        let recording = state.events.get(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?.recordings();
        // Waiting for an event that was never recorded returns at once.
        if recording == 0 {
            return Ok(());
        }
        enqueue(state, stream, Operation::Wait { event: handle, recording })
    })
}
