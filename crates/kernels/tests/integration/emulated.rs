//! The stand-in driver, one test at a time: its settings and counts belong to the process.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overspill_kernels::Kernels;
use overspill_machine::driver::{Device, Driver};

/// Mirrors `control::Statistics` of the stand-in.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    pub device_allocations: u64,
    pub device_bytes: u64,
    pub pinned_allocations: u64,
    pub pinned_bytes: u64,
    pub physical_pieces: u64,
    pub address_ranges: u64,
    pub streams: u64,
    pub events: u64,
    pub modules: u64,
    pub contexts: u64,
    pub allocations_made: u64,
    pub registrations_made: u64,
    pub copies_made: u64,
    pub launches_made: u64,
    pub flushes: u64,
    pub full_lines: u64,
    pub full_line_bytes: u64,
    pub partial_lines: u64,
    pub partial_line_bytes: u64,
}

impl Statistics {
    /// What is held now, without what only counts up.
    pub fn held(self) -> [u64; 9] {
        [
            self.device_allocations,
            self.device_bytes,
            self.pinned_allocations,
            self.pinned_bytes,
            self.physical_pieces,
            self.address_ranges,
            self.streams,
            self.events,
            self.modules,
        ]
    }
}

/// A launch, as the stand-in writes it down.
#[derive(Debug)]
#[allow(dead_code)] // The kernel is for whoever reads a failed assertion.
pub struct RecordedLaunch {
    pub kernel: String,
    pub blocks: u32,
    pub scratchpad: u64,
}

/// The stand-in, to oneself.
pub struct Emulated {
    pub driver: &'static Driver,
    library: *mut c_void,
    _alone: MutexGuard<'static, ()>,
}

impl Emulated {
    pub fn start() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = library();
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a C string; loading it runs nothing of its own.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!library.is_null(), "{path:?}");
        // How many devices there are is asked once, when the driver is loaded.
        configure(library, "devices=3");
        let emulated = Self { driver: Driver::emulated(&path).unwrap(), library, _alone: alone };
        let multiprocessors = std::env::var("OVERSPILL_TEST_MULTIPROCESSORS").unwrap_or_else(|_| "4".to_owned());
        emulated.configure(&format!("multiprocessors={multiprocessors}"));
        let workers = std::env::var("OVERSPILL_TEST_WORKERS").unwrap_or_else(|_| "4".to_owned());
        emulated.configure(&format!("workers={workers}"));
        emulated.configure("memory=268435456;shared=232448;seed=0;coherent=0;granularity=2097152");
        emulated.configure("host_pages=1;peer_access=1;peer_atomics=1");
        emulated.configure(
            "fail=allocation:0;fail=registration:0;fail=copy:0;fail=launch:0;fail=synchronisation:0;fail=device_lost:0",
        );
        emulated
    }

    pub fn configure(&self, settings: &str) {
        configure(self.library, settings);
    }

    /// Where an address lies: the number of a device, -1 for CPU memory that the driver knows of, -2 for what it does not.
    pub fn place(&self, address: u64) -> i32 {
        // SAFETY: the function has this type.
        let place: extern "C" fn(usize) -> i32 =
            unsafe { std::mem::transmute(symbol(self.library, c"overspill_emulated_place")) };
        place(address as usize)
    }

    pub fn statistics(&self) -> Statistics {
        // SAFETY: the function has this type.
        let read: unsafe extern "C" fn(*mut Statistics) =
            unsafe { std::mem::transmute(symbol(self.library, c"overspill_emulated_statistics")) };
        let mut statistics = Statistics::default();
        // SAFETY: the place is valid.
        unsafe { read(&mut statistics) };
        statistics
    }

    /// What is launched meanwhile.
    pub fn launches(&self, work: impl FnOnce()) -> Vec<RecordedLaunch> {
        let log = tempfile::NamedTempFile::new().unwrap();
        self.configure(&format!("launches={}", log.path().display()));
        work();
        let text = std::fs::read_to_string(log.path()).unwrap();
        text.lines()
            .filter_map(|line| line.strip_prefix("ran "))
            .map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                RecordedLaunch {
                    kernel: fields[0].to_owned(),
                    blocks: fields[1].parse().unwrap(),
                    scratchpad: fields[3].parse().unwrap(),
                }
            })
            .collect()
    }

    pub fn device(&self) -> Arc<Device> {
        self.driver.device(0, 200 << 20).unwrap()
    }

    pub fn kernels(&self) -> Kernels {
        Kernels::load(&self.device()).unwrap()
    }
}

fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the library is loaded and the name a C string.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!symbol.is_null(), "{name:?}");
    symbol
}

fn configure(library: *mut c_void, settings: &str) {
    let text = CString::new(settings).unwrap();
    // SAFETY: the function has this type.
    let configure: unsafe extern "C" fn(*const c_char) -> i32 =
        unsafe { std::mem::transmute(symbol(library, c"overspill_emulated_configure")) };
    // SAFETY: a C string.
    assert_eq!(unsafe { configure(text.as_ptr()) }, 0, "{settings}");
}

/// Beside the tests, unless the environment says otherwise.
pub fn library() -> PathBuf {
    std::env::var_os("OVERSPILL_EMULATED_DRIVER").map_or_else(
        || std::env::current_exe().unwrap().with_file_name("liboverspill_emulated_driver.so"),
        PathBuf::from,
    )
}

/// `tuples`, or fewer where the environment asks for less.
pub fn scaled(tuples: u64) -> u64 {
    std::env::var("OVERSPILL_TEST_TUPLES").map_or(tuples, |text| tuples.min(text.parse().unwrap()))
}

/// The schedules to try: first come, first served, and this many drawn ones.
pub fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("OVERSPILL_TEST_SCHEDULES").map_or(11, |text| text.parse().unwrap())
}
