//! Does the work of streams, when a caller waits for it.
//!
//! Code that forgets to wait sees old data here every time, while on a GPU it would see it rarely.

use cudarc::driver::sys::{CUresult, CUstream};

use crate::context;
use crate::error::Outcome;
use crate::queue::{Operation, Stream, name};
use crate::state::State;

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
    let Some(device) = state.streams.get(&stream).map(|stream| stream.device) else { return Ok(()) };
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
            Operation::Fill { to, bytes, value } => {
                // SAFETY: as above.
                unsafe { std::ptr::write_bytes(to as *mut u8, value, bytes) };
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
            Operation::Wait { event, recording } => run_until_recorded(state, event, recording)?,
        }
    }
    Ok(())
}

/// Does all pending work of the current device.
pub fn run_current(state: &mut State) -> Outcome {
    let device = context::current()?;
    let streams: Vec<u64> =
        state.streams.iter().filter(|(_, stream)| stream.device == device).map(|(name, _)| *name).collect();
    streams.into_iter().try_for_each(|stream| run(state, stream, None))
}

/// Does all pending work of all devices. Only errors of the current device are returned; calls for another device return its
/// error.
pub fn run_all(state: &mut State) -> Outcome {
    let current = context::current()?;
    let streams: Vec<(u64, usize)> = state.streams.iter().map(|(name, stream)| (*name, stream.device)).collect();
    streams.into_iter().try_for_each(|(stream, device)| {
        let ran = run(state, stream, None);
        if device == current { ran } else { Ok(()) }
    })
}

/// Does the work that precedes a recording of an event.
pub fn run_until_recorded(state: &mut State, event: u64, recording: u64) -> Outcome {
    match state.events.get(&event) {
        Some(found) if found.reached < recording => {
            let stream = found.stream;
            run(state, stream, Some((event, recording)))
        }
        _ => Ok(()),
    }
}
