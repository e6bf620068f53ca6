//! Controls of the stand-in beyond a driver's functions: the size and number of its devices, the schedule of threads,
//! injected failures, and counters.
//!
//! Settings are `name=value`, separated by `;`. They are read from the environment variable `OVERSPILL_EMULATED` when the
//! driver is initialised, and from [`overspill_emulated_configure`] at any time. `fail=kind:n` makes the n-th call of a kind
//! fail from now on. `fail=kind:n@device` counts only the calls of one device. `reset=1` restores the state of a new process.
//! `launches=path` writes a line `kernel NAME` to that file for each kernel that exists, and from now on a line
//! `ran NAME BLOCKS THREADS SCRATCHPAD SEED` for each kernel that has run.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::Clock;
use crate::launch::log_launches;
use crate::ranges::{self, Kind};
use crate::settings::{
    ALLOCATION, ANY_DEVICE, COPY, Cost, DEVICE_LOST, FAILURES, LAUNCH, REGISTRATION, SETTINGS, SYNCHRONISATION,
};
use crate::state::State;
use crate::statistics::Statistics;

static READ_ENVIRONMENT: AtomicBool = AtomicBool::new(false);

/// Reads the settings from the environment, once.
pub fn read_environment() {
    if !READ_ENVIRONMENT.swap(true, Ordering::SeqCst)
        && let Ok(text) = std::env::var("OVERSPILL_EMULATED")
        && let Err(reason) = configure(&text)
    {
        eprintln!("OVERSPILL_EMULATED: {reason}");
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.trim().parse().map_err(|_| format!("{name}={value}: not a number"))
}

/// Nanoseconds for a call, or for a call and for each MiB: `n` or `n:m`.
fn cost(name: &str, value: &str) -> Result<Cost, String> {
    let (call, mebibyte) = value.split_once(':').unwrap_or((value, "0"));
    Ok(Cost { call: number(name, call)?, mebibyte: number(name, mebibyte)? })
}

fn configure(text: &str) -> Result<(), String> {
    let mut reset = false;
    let mut settings = SETTINGS.lock();
    for setting in text.split(';').map(str::trim).filter(|setting| !setting.is_empty()) {
        let (name, value) = setting.split_once('=').ok_or_else(|| format!("{setting}: not of the form name=value"))?;
        match name.trim() {
            "devices" => settings.devices = number(name, value)?,
            "memory" => settings.memory = number(name, value)?,
            "multiprocessors" => settings.multiprocessors = number(name, value)?,
            "shared" => settings.shared = number(name, value)?,
            "seed" => settings.seed = number(name, value)?,
            "workers" => settings.workers = number(name, value)?,
            "coherent" => settings.coherent = number::<u8>(name, value)? != 0,
            "granularity" => settings.granularity = number(name, value)?,
            "host_pages" => settings.host_pages = number::<u8>(name, value)? != 0,
            "peer_access" => settings.peer_access = number::<u8>(name, value)? != 0,
            "peer_atomics" => settings.peer_atomics = number::<u8>(name, value)? != 0,
            "driver" => settings.driver = number(name, value)?,
            "energy" => settings.energy = number::<u8>(name, value)? != 0,
            "wait" => settings.costs.wait = cost(name, value)?,
            "launch" => settings.costs.launch = cost(name, value)?,
            "copy" => settings.costs.copy = cost(name, value)?,
            "registration" => settings.costs.registration = cost(name, value)?,
            "mapping" => settings.costs.mapping = cost(name, value)?,
            "failure" => {
                let code: u32 = number(name, value)?;
                let found = FAILURES.into_iter().find(|error| *error as u32 == code);
                settings.failure =
                    found.ok_or_else(|| format!("failure={value}: not one of those that it may name"))?;
            }
            "fail" => {
                let (kind, nth) =
                    value.split_once(':').ok_or_else(|| format!("fail={value}: not of the form fail=kind:n"))?;
                let (nth, device) = match nth.split_once('@') {
                    Some((nth, device)) => (nth, number(kind, device)?),
                    None => (nth, ANY_DEVICE),
                };
                let fault = [&ALLOCATION, &REGISTRATION, &COPY, &LAUNCH, &SYNCHRONISATION, &DEVICE_LOST]
                    .into_iter()
                    .find(|fault| fault.name == kind)
                    .ok_or_else(|| format!("fail={value}: there is no kind {kind}"))?;
                fault.device.store(device, Ordering::SeqCst);
                fault.remaining.store(number(kind, nth)?, Ordering::SeqCst);
            }
            "launches" => log_launches(value).map_err(|error| format!("launches={value}: {error}"))?,
            "reset" => reset = number::<u8>(name, value)? != 0,
            other => return Err(format!("there is no setting {other}")),
        }
    }
    drop(settings);
    if reset {
        State::lock().reset();
    }
    Ok(())
}

/// Applies the settings in `text`. Returns 0, or 1 with a line on standard error if a setting is invalid.
///
/// # Safety
/// `text` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_emulated_configure(text: *const c_char) -> i32 {
    // SAFETY: the caller promises a C string.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str().map_err(|_| "not UTF-8".to_owned()).and_then(configure) {
        Ok(()) => 0,
        Err(reason) => {
            eprintln!("{reason}");
            1
        }
    }
}

/// Writes the counters to `place`.
///
/// # Safety
/// `place` is valid for a write of [`Statistics`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_emulated_statistics(place: *mut Statistics) {
    let statistics = State::lock().statistics();
    // SAFETY: the caller promises that the place is valid.
    unsafe { place.write(statistics) };
}

/// Writes the virtual clock to `place`. Returns 0, or 1 if the caller's structure has another size.
///
/// # Safety
/// `place` is valid for a write of `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn overspill_emulated_clock(place: *mut Clock, bytes: usize) -> i32 {
    if bytes != size_of::<Clock>() {
        return 1;
    }
    let clock = State::lock().clock;
    // SAFETY: the caller promises that the place is valid.
    unsafe { place.write(clock) };
    0
}

/// The location of an address: the device's number, -1 for CPU memory known to the driver, -2 for unknown memory.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_emulated_place(address: usize) -> i32 {
    match ranges::kind_of(address) {
        Some(Kind::Device(device) | Kind::Unified(device) | Kind::MappedDevice(device)) => {
            i32::try_from(device).unwrap_or(i32::MAX)
        }
        Some(Kind::Registered | Kind::MappedHost) => -1,
        None => -2,
    }
}
