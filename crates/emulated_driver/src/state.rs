//! The state of the driver between calls.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use cudarc::driver::sys::CUresult;
use parking_lot::{Mutex, MutexGuard};

use crate::clock::Clock;
use crate::error::{Outcome, code, ensure};
use crate::pieces::VirtualMemory;
use crate::queue::{Event, Stream};
use crate::settings::DEVICE_LOST;
use crate::statistics::{FlushCounts, Statistics};
use crate::{context, ranges};

#[derive(Default)]
pub struct State {
    pub initialised: bool,
    /// The number of times each device's primary context is retained.
    pub contexts: Vec<usize>,
    pub streams: HashMap<u64, Stream>,
    pub events: HashMap<u64, Event>,
    /// The device that each module is loaded on.
    pub modules: HashMap<u64, usize>,
    /// The dynamic scratchpad bytes that a kernel may request where that is more than all kernels may.
    pub shared_limits: HashMap<u64, usize>,
    pub virtual_memory: VirtualMemory,
    /// The error of each lost device. Every call for the device returns it, as real drivers do after a failed launch or the
    /// loss of a device.
    pub lost: HashMap<usize, CUresult>,
    pub flushes: FlushCounts,
    pub clock: Clock,
    /// The energy that each device has taken, in millijoules.
    pub millijoules: HashMap<usize, u64>,
    next_handle: u64,
}

impl State {
    pub fn lock() -> MutexGuard<'static, Self> {
        // Handles are larger than any null or small pointer.
        static STATE: LazyLock<Mutex<State>> =
            LazyLock::new(|| Mutex::new(State { next_handle: 0x1000, ..State::default() }));
        STATE.lock()
    }

    pub fn handle(&mut self) -> u64 {
        self.next_handle += 16;
        self.next_handle
    }

    /// Makes every further call for this device fail. Drops the pending work of its streams.
    pub fn lose_device(&mut self, device: usize, error: CUresult) {
        self.lost.entry(device).or_insert(error);
        for stream in self.streams.values_mut().filter(|stream| stream.device == device) {
            stream.queue.clear();
        }
    }

    /// Ends a device's context and releases everything it owned, also after the device was lost.
    pub fn destroy_context(&mut self, device: usize) {
        self.streams.retain(|_, stream| stream.device != device);
        self.events.retain(|_, event| event.device != device);
        self.modules.retain(|_, of| *of != device);
        ranges::clear_device(device);
        self.lost.remove(&device);
    }

    /// Ends the last context and releases everything it owned, also after a device was lost.
    pub fn destroy_contexts(&mut self) {
        self.streams.clear();
        self.events.clear();
        self.modules.clear();
        self.shared_limits.clear();
        self.virtual_memory.clear();
        ranges::clear();
        self.lost.clear();
    }

    /// Restores the state of a new process. Also discards contexts that no caller will release.
    pub fn reset(&mut self) {
        self.contexts.fill(0);
        self.destroy_contexts();
    }

    pub fn statistics(&self) -> Statistics {
        let held = ranges::statistics();
        Statistics {
            device_bytes: held.device_bytes + self.virtual_memory.device_bytes(),
            physical_pieces: self.virtual_memory.pieces.len() as u64,
            address_ranges: self.virtual_memory.ranges.len() as u64,
            streams: self.streams.len() as u64,
            events: self.events.len() as u64,
            modules: self.modules.len() as u64,
            contexts: self.contexts.iter().sum::<usize>() as u64,
            registrations_made: self.clock.registrations.calls,
            copies_made: self.clock.copies.calls,
            launches_made: self.clock.launches.calls,
            waits_made: self.clock.waits.calls,
            mappings_made: self.clock.mappings.calls,
            flushes: self.flushes,
            ..held
        }
    }
}

/// Runs a driver call with the state locked. Returns an error once the call's device is lost, and lets no panic cross the C
/// boundary. A call without a current context counts as a call of the first device.
pub fn call(body: impl FnOnce(&mut State) -> Outcome) -> CUresult {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut state = State::lock();
        ensure(state.initialised, CUresult::CUDA_ERROR_NOT_INITIALIZED)?;
        let device = context::current().unwrap_or(0);
        if DEVICE_LOST.strikes() {
            state.lose_device(device, CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
        }
        match state.lost.get(&device) {
            Some(error) => Err(*error),
            None => body(&mut state),
        }
    }));
    code(outcome.unwrap_or(Err(CUresult::CUDA_ERROR_UNKNOWN)))
}
