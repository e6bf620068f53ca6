//! The settings of the stand-in, and the failures injected into it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cudarc::driver::sys::CUresult;
use parking_lot::Mutex;

use crate::context;

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
    /// `wait`, `launch`, `copy`, `registration`, `mapping`: nanoseconds that the virtual clock charges for a call, and after a
    /// colon for each MiB.
    pub costs: Costs,
    /// `failure`: the number of the error of a failed synchronisation, which all later calls give as well.
    pub failure: CUresult,
}

/// The cost of a kind of call, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    pub call: u64,
    pub mebibyte: u64,
}

/// The costs of all kinds.
#[derive(Debug, Clone, Copy)]
pub struct Costs {
    pub wait: Cost,
    pub launch: Cost,
    pub copy: Cost,
    pub registration: Cost,
    pub mapping: Cost,
}

impl Costs {
    /// The usual order of a wait, and of queueing a kernel or a copy. Registration of huge pages that were touched before: 97 ms a
    /// GiB. Creating, mapping, giving access to and unmapping a piece: 1 ms.
    pub const USUAL: Self = Self {
        wait: Cost { call: 10_000, mebibyte: 0 },
        launch: Cost { call: 5_000, mebibyte: 0 },
        copy: Cost { call: 5_000, mebibyte: 0 },
        registration: Cost { call: 10_000, mebibyte: 95_000 },
        mapping: Cost { call: 1_000_000, mebibyte: 0 },
    };
}

/// The errors that `failure` may name: those that drivers give for a kernel that has failed, and one that they do not.
pub const FAILURES: [CUresult; 6] = [
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_UNKNOWN,
    CUresult::CUDA_ERROR_NOT_PERMITTED,
];

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
            costs: Costs::USUAL,
            failure: CUresult::CUDA_ERROR_LAUNCH_FAILED,
        }
    }
}

pub static SETTINGS: Mutex<Settings> = Mutex::new(Settings::new());

/// An injected failure: the n-th call of its kind from now on fails, once. A lost device stays lost.
pub struct Fault {
    pub name: &'static str,
    /// The calls until one fails; 0 for never.
    pub remaining: AtomicU64,
    /// The device whose calls count, or [`ANY_DEVICE`].
    pub device: AtomicUsize,
}

pub const ANY_DEVICE: usize = usize::MAX;

impl Fault {
    const fn new(name: &'static str) -> Self {
        Self { name, remaining: AtomicU64::new(0), device: AtomicUsize::new(ANY_DEVICE) }
    }

    /// Counts a call of this kind, and returns whether it fails.
    pub fn strikes(&self) -> bool {
        let device = self.device.load(Ordering::SeqCst);
        if device != ANY_DEVICE && context::current() != Ok(device) {
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
pub static DEVICE_LOST: Fault = Fault::new("device_lost");

pub fn settings() -> Settings {
    SETTINGS.lock().clone()
}
