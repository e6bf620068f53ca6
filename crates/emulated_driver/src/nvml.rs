//! Emulates the energy counter of NVIDIA's management library. That library is separate from libcuda, but is included here so
//! that the stand-in is one file; callers are given its path.
//!
//! A kernel takes a millijoule for each of its threads. The value is artificial: it lets tests check that the counter is read
//! before and after the measured work.

use std::ffi::{CStr, c_char, c_uint, c_ulonglong};

use crate::device::pci_bus_id;
use crate::settings::settings;
use crate::state::State;

const SUCCESS: c_uint = 0;
const INVALID_ARGUMENT: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;
const NOT_FOUND: c_uint = 6;

/// Does nothing: the driver is already initialised, or reports no devices.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_uint {
    SUCCESS
}

/// Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_uint {
    SUCCESS
}

/// # Safety
/// `id` is a C string, and `place` null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, place: *mut usize) -> c_uint {
    if id.is_null() || place.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller promises a C string.
    let id = unsafe { CStr::from_ptr(id) }.to_string_lossy();
    match (0..settings().devices).find(|device| pci_bus_id(*device) == id) {
        Some(device) => {
            // SAFETY: `place` is not null, and the caller promises that it is valid. Handles are not null either.
            unsafe { place.write(device + 1) };
            SUCCESS
        }
        None => NOT_FOUND,
    }
}

/// # Safety
/// `place` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(device: usize, place: *mut c_ulonglong) -> c_uint {
    let settings = settings();
    match device.checked_sub(1).filter(|device| *device < settings.devices) {
        Some(device) if !place.is_null() => {
            if !settings.energy {
                return NOT_SUPPORTED;
            }
            let taken = State::lock().millijoules.get(&device).copied().unwrap_or(0);
            // SAFETY: `place` is not null, and the caller promises that it is valid.
            unsafe { place.write(taken) };
            SUCCESS
        }
        _ => INVALID_ARGUMENT,
    }
}
