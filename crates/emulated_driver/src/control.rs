//! Controls of the stand-in beyond a driver's functions: the size and number of its devices, the schedule of threads,
//! injected failures, and counters.
//!
//! Settings are `name=value`, separated by `;`. They are read from the environment variable `OVERSPILL_EMULATED` when the
//! driver is initialised, and from [`overspill_emulated_configure`] at any time. `fail=kind:n` makes the n-th call of a kind
//! fail from now on. `fail=kind:n@device` counts only the calls of one device. `reset=1` restores the state of a new process.
//! `launches=path` writes a line `kernel NAME` to that file for each kernel that exists, and from now on a line
//! `ran NAME BLOCKS THREADS SCRATCHPAD SEED` for each kernel that has run.

use std::ffi::{CStr, c_char};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::device;
use crate::kernel::{self, FlushCounts};
use crate::memory::{self, Kind};
use crate::state::State;

/// The settings of the stand-in.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `devices`: the number of devices.
    pub devices: usize,
    /// `memory`: bytes of memory of each device.
    pub memory: usize,
    /// `multiprocessors` of each device.
    pub multiprocessors: i32,
    /// `shared`: bytes of scratchpad memory that a block may request.
    pub shared: i32,
    /// `seed`: the schedule of the threads of a block. 0 runs them in order of arrival.
    pub seed: u64,
    /// `workers`: the number of blocks that run concurrently.
    pub workers: u32,
    /// `coherent`: whether devices read pageable memory through the host's page tables.
    pub coherent: bool,
    /// `granularity`: the page size of virtual memory management in bytes; 0 reports it as unsupported.
    pub granularity: usize,
    /// `host_pages`: whether virtual memory management maps CPU pages.
    pub host_pages: bool,
    /// `peer_access`: whether devices can access each other's memory.
    pub peer_access: bool,
    /// `peer_atomics`: whether atomic operations on another device's memory are atomic for all devices.
    pub peer_atomics: bool,
    /// `driver`: the version that the driver reports.
    pub driver: i32,
    /// `energy`: whether devices count their energy.
    pub energy: bool,
}

impl Settings {
    const fn new() -> Self {
        Self {
            devices: 1,
            memory: 256 << 20,
            multiprocessors: 4,
            shared: 227 << 10,
            seed: 0,
            workers: 4,
            coherent: false,
            granularity: 2 << 20,
            host_pages: true,
            peer_access: true,
            peer_atomics: true,
            driver: 13000,
            energy: true,
        }
    }
}

static SETTINGS: Mutex<Settings> = Mutex::new(Settings::new());

/// An injected failure: the n-th call of its kind from now on fails, once. A lost device stays lost.
pub struct Fault {
    name: &'static str,
    /// The calls until one fails; 0 for never.
    remaining: AtomicU64,
    /// The device whose calls count, or [`ANY_DEVICE`].
    device: AtomicUsize,
}

const ANY_DEVICE: usize = usize::MAX;

impl Fault {
    const fn new(name: &'static str) -> Self {
        Self { name, remaining: AtomicU64::new(0), device: AtomicUsize::new(ANY_DEVICE) }
    }

    /// Counts a call of this kind, and returns whether it fails.
    pub fn strikes(&self) -> bool {
        let device = self.device.load(Ordering::SeqCst);
        if device != ANY_DEVICE && device::current() != Ok(device) {
            return false;
        }
        self.remaining.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) == Ok(1)
    }
}

pub static ALLOCATION: Fault = Fault::new("allocation");
pub static REGISTRATION: Fault = Fault::new("registration");
pub static COPY: Fault = Fault::new("copy");
pub static LAUNCH: Fault = Fault::new("launch");
pub static SYNCHRONISATION: Fault = Fault::new("synchronisation");
static DEVICE_LOST: Fault = Fault::new("device_lost");

/// Whether this call finds its device lost because of `fail=device_lost:n`.
pub fn device_is_lost_now() -> bool {
    DEVICE_LOST.strikes()
}

pub fn settings() -> Settings {
    SETTINGS.lock().clone()
}

/// Counters of the stand-in since it was loaded.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Statistics {
    /// Current allocations and bytes: device memory, unified memory, pinned host memory.
    pub device_allocations: u64,
    pub device_bytes: u64,
    pub pinned_allocations: u64,
    pub pinned_bytes: u64,
    /// Current physical pieces and address ranges of virtual memory management.
    pub physical_pieces: u64,
    pub address_ranges: u64,
    pub streams: u64,
    pub events: u64,
    pub modules: u64,
    pub contexts: u64,
    /// The number of calls so far.
    pub allocations_made: u64,
    pub registrations_made: u64,
    pub copies_made: u64,
    pub launches_made: u64,
    pub flushes: FlushCounts,
}

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

/// The file that launches are written to, if any.
static LAUNCHES: Mutex<Option<File>> = Mutex::new(None);

fn log_launches(path: &str) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    for name in kernel::names() {
        writeln!(file, "kernel {name}")?;
    }
    *LAUNCHES.lock() = Some(file);
    Ok(())
}

/// Records that a kernel has run.
pub fn log_launch(name: &str, blocks: u32, threads: u32, scratchpad: usize, seed: u64) {
    if let Some(file) = LAUNCHES.lock().as_mut()
        && let Err(error) = writeln!(file, "ran {name} {blocks} {threads} {scratchpad} {seed}")
    {
        eprintln!("the launches are not all written: {error}");
    }
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

/// The location of an address: the device's number, -1 for CPU memory known to the driver, -2 for unknown memory.
#[unsafe(no_mangle)]
pub extern "C" fn overspill_emulated_place(address: usize) -> i32 {
    match memory::kind_of(address) {
        Some(Kind::Device(device) | Kind::Unified(device) | Kind::MappedDevice(device)) => {
            i32::try_from(device).unwrap_or(i32::MAX)
        }
        Some(Kind::Pinned | Kind::Registered | Kind::MappedHost) => -1,
        None => -2,
    }
}
