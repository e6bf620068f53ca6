//! The driver that tests run on, one test at a time: settings and counts of the stand-in belong to the process.

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
    pub waits_made: u64,
    pub mappings_made: u64,
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

/// The stand-in or a GPU, to oneself.
pub struct TestGpu {
    pub driver: &'static Driver,
    /// The stand-in's library; `None` on a GPU.
    library: Option<*mut c_void>,
    _alone: MutexGuard<'static, ()>,
}

/// Whether the tests take the GPU of the machine.
fn is_real() -> bool {
    std::env::var("OVERSPILL_TEST_GPU").is_ok_and(|value| value == "1")
}

/// Says which test ends early, and why.
fn skip(reason: &str) {
    eprintln!("skipped: {}: {reason}", std::thread::current().name().unwrap_or("a test"));
}

impl TestGpu {
    /// The stand-in with its default settings, or the GPU.
    pub fn start() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        if is_real() {
            let driver = Driver::nvidia().unwrap_or_else(|error| panic!("OVERSPILL_TEST_GPU asks for a GPU: {error}"));
            return Self { driver, library: None, _alone: alone };
        }
        let path = library();
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a C string; loading it runs nothing of its own.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!library.is_null(), "{path:?}");
        // How many devices there are is asked once, when the driver is loaded.
        configure(library, "devices=3");
        let gpu = Self { driver: Driver::emulated(&path).unwrap(), library: Some(library), _alone: alone };
        let multiprocessors = std::env::var("OVERSPILL_TEST_MULTIPROCESSORS").unwrap_or_else(|_| "4".to_owned());
        gpu.configure(&format!("multiprocessors={multiprocessors}"));
        let workers = std::env::var("OVERSPILL_TEST_WORKERS").unwrap_or_else(|_| "4".to_owned());
        gpu.configure(&format!("workers={workers}"));
        gpu.configure("memory=268435456;shared=232448;seed=0;coherent=0;granularity=2097152");
        gpu.configure("host_pages=1;peer_access=1;peer_atomics=1");
        gpu.configure(
            "fail=allocation:0;fail=registration:0;fail=copy:0;fail=launch:0;fail=synchronisation:0;fail=device_lost:0",
        );
        gpu
    }

    /// The stand-in, for a test of what a GPU cannot do. On a GPU the test ends.
    pub fn stand_in() -> Option<Self> {
        if is_real() {
            skip("only the stand-in can do this");
            return None;
        }
        Some(Self::start())
    }

    fn library(&self) -> *mut c_void {
        self.library.expect("the stand-in; a test of what it alone can do begins with `stand_in`")
    }

    pub fn configure(&self, settings: &str) {
        configure(self.library(), settings);
    }

    /// Draws the order of the stand-in's blocks from a seed. A GPU has an order of its own each time.
    pub fn schedule(&self, seed: u64) {
        if self.library.is_some() {
            self.configure(&format!("seed={seed}"));
        }
    }

    /// Makes the stand-in's link coherent or not. Returns whether the link is as asked, which a GPU's may not be.
    pub fn set_coherent(&self, coherent: bool) -> bool {
        if self.library.is_some() {
            self.configure(&format!("coherent={}", u8::from(coherent)));
        }
        let is_as_asked = self.device().properties().coherent == coherent;
        if !is_as_asked {
            skip("with a link that is coherent, or is not");
        }
        is_as_asked
    }

    /// Gives the stand-in `count` multiprocessors. Returns how many there are.
    pub fn set_multiprocessors(&self, count: u32) -> u32 {
        if self.library.is_some() {
            self.configure(&format!("multiprocessors={count}"));
        }
        self.device().properties().multiprocessors
    }

    /// Gives blocks of the stand-in at most this much scratchpad memory. A GPU keeps its own.
    pub fn set_scratchpad(&self, bytes: u32) {
        if self.library.is_some() {
            self.configure(&format!("shared={bytes}"));
        }
    }

    /// Whether pages of CPU memory can be mapped beside those of the GPU.
    pub fn maps_host_pages(&self) -> bool {
        let device = self.device();
        let can_map = device.properties().virtual_memory_management && device.properties().host_pages;
        if !can_map {
            skip("the driver maps no pages of CPU memory");
        }
        can_map
    }

    /// Where an address lies: the number of a device, -1 for CPU memory that the driver knows of, -2 for what it does not.
    pub fn place(&self, address: u64) -> i32 {
        // SAFETY: the function has this type.
        let place: extern "C" fn(usize) -> i32 =
            unsafe { std::mem::transmute(symbol(self.library(), c"overspill_emulated_place")) };
        place(address as usize)
    }

    /// What the stand-in holds now. A GPU does not count it: nothing, at any time.
    pub fn held(&self) -> [u64; 9] {
        self.statistics().held()
    }

    /// What the stand-in counts. A GPU counts nothing.
    pub fn statistics(&self) -> Statistics {
        if self.library.is_none() {
            return Statistics::default();
        }
        // SAFETY: the function has this type.
        let read: unsafe extern "C" fn(*mut Statistics) =
            unsafe { std::mem::transmute(symbol(self.library(), c"overspill_emulated_statistics")) };
        let mut statistics = Statistics::default();
        // SAFETY: the place is valid.
        unsafe { read(&mut statistics) };
        statistics
    }

    /// What is launched meanwhile; a GPU does not list it.
    pub fn launches(&self, work: impl FnOnce()) -> Option<Vec<RecordedLaunch>> {
        if self.library.is_none() {
            work();
            return None;
        }
        let log = tempfile::NamedTempFile::new().unwrap();
        self.configure(&format!("launches={}", log.path().display()));
        work();
        let text = std::fs::read_to_string(log.path()).unwrap();
        let launches = text
            .lines()
            .filter_map(|line| line.strip_prefix("ran "))
            .map(|line| {
                let fields: Vec<&str> = line.split(' ').collect();
                RecordedLaunch {
                    kernel: fields[0].to_owned(),
                    blocks: fields[1].parse().unwrap(),
                    scratchpad: fields[3].parse().unwrap(),
                }
            })
            .collect();
        Some(launches)
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
