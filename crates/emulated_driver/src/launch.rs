//! The kernels, and launches of them.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::fs::File;
use std::io::Write;

use cudarc::driver::sys::{CUfunction, CUresult};
use parking_lot::Mutex;

use crate::error::Outcome;
use crate::ranges;
use crate::settings::settings;
use crate::statistics::FlushCounts;

type Thunk = unsafe extern "C" fn(*mut *mut c_void);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Kernel {
    name: *const c_char,
    thunk: Option<Thunk>,
    pub parameter_sizes: *const usize,
    pub parameters: usize,
}

#[repr(C)]
struct HostLaunch {
    thunk: Option<Thunk>,
    parameters: *mut *mut c_void,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    dynamic_shared_bytes: usize,
    seed: u64,
    workers: c_uint,
    is_cpu_memory: extern "C" fn(usize) -> bool,
}

unsafe extern "C" {
    fn overspill_host_kernel_at(number: usize, kernel: *mut Kernel) -> bool;
    fn overspill_host_run(
        launch: *const HostLaunch,
        counts: *mut FlushCounts,
        error: *mut c_char,
        capacity: usize,
    ) -> bool;
}

fn kernel_at(number: usize) -> Option<Kernel> {
    let mut kernel = Kernel { name: std::ptr::null(), thunk: None, parameter_sizes: std::ptr::null(), parameters: 0 };
    // SAFETY: `kernel` is valid for the write.
    unsafe { overspill_host_kernel_at(number, &mut kernel) }.then_some(kernel)
}

impl Kernel {
    fn name(&self) -> &'static CStr {
        // SAFETY: names are C strings in static memory.
        unsafe { CStr::from_ptr(self.name) }
    }
}

/// Bytes of static scratchpad memory by the beginning of a kernel's name, as NVIDIA's compiler reports them. Only kernels
/// that otherwise use all available scratchpad memory are listed.
const STATIC_SHARED_BYTES: [(&str, usize); 3] =
    [("join_partitions_aggregate", 640), ("join_partitions_allocate", 128), ("partition_linear", 128)];

impl Kernel {
    pub fn static_shared_bytes(&self) -> usize {
        let name = self.name().to_string_lossy();
        STATIC_SHARED_BYTES.iter().find(|(start, _)| name.starts_with(start)).map_or(0, |(_, bytes)| *bytes)
    }
}

/// The names of all kernels.
pub fn names() -> impl Iterator<Item = Cow<'static, str>> {
    (0..).map_while(kernel_at).map(|kernel| kernel.name().to_string_lossy())
}

/// Bits of a function's handle that number the kernel. The others are the module's handle: each module has functions of its own.
const KERNEL_BITS: u32 = 16;

/// The number of the kernel `name`.
pub fn find(name: &CStr) -> Option<usize> {
    (0..).map_while(kernel_at).position(|kernel| kernel.name() == name)
}

/// The handle of a module's kernel.
pub fn handle(module: u64, number: usize) -> CUfunction {
    (module << KERNEL_BITS | number as u64) as CUfunction
}

/// The module of a function's handle.
pub fn module_of(function: u64) -> u64 {
    function >> KERNEL_BITS
}

pub fn of(function: CUfunction) -> Result<Kernel, CUresult> {
    let number = function as usize & ((1 << KERNEL_BITS) - 1);
    kernel_at(number).filter(|_| !function.is_null()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// A launch with copies of its parameters, as the caller may overwrite them when the call returns.
pub struct QueuedLaunch {
    /// The number of the device.
    pub device: usize,
    pub kernel: Kernel,
    /// The parameter values, each in 8-byte words so that all are aligned.
    pub parameters: Vec<Vec<u64>>,
    pub grid: [c_uint; 3],
    pub block: [c_uint; 3],
    pub dynamic_shared_bytes: usize,
}

// SAFETY: the kernel's pointers refer to static, constant memory.
unsafe impl Send for QueuedLaunch {}

impl QueuedLaunch {
    /// The number of threads of all blocks.
    pub fn threads(&self) -> u64 {
        self.grid.iter().chain(&self.block).map(|size| u64::from(*size)).product()
    }

    pub fn run(mut self, flushes: &mut FlushCounts) -> Outcome {
        let mut pointers: Vec<*mut c_void> =
            self.parameters.iter_mut().map(|value| value.as_mut_ptr().cast()).collect();
        let settings = settings();
        let launch = HostLaunch {
            thunk: self.kernel.thunk,
            parameters: pointers.as_mut_ptr(),
            grid: self.grid,
            block: self.block,
            dynamic_shared_bytes: self.dynamic_shared_bytes,
            seed: settings.seed,
            workers: settings.workers,
            is_cpu_memory: ranges::is_cpu_memory,
        };
        let mut counts = FlushCounts::default();
        let mut error = [0 as c_char; 1024];
        // SAFETY: the parameters were copied with the kernel's sizes, and everything lives until the call returns.
        let ran = unsafe { overspill_host_run(&launch, &mut counts, error.as_mut_ptr(), error.len()) };
        flushes.flushes += counts.flushes;
        flushes.full_lines += counts.full_lines;
        flushes.full_line_bytes += counts.full_line_bytes;
        flushes.partial_lines += counts.partial_lines;
        flushes.partial_line_bytes += counts.partial_line_bytes;
        let name = self.kernel.name().to_string_lossy();
        if ran {
            let [blocks, threads] = [self.grid, self.block].map(|sizes| sizes.iter().product());
            log_launch(&name, blocks, threads, self.dynamic_shared_bytes, settings.seed);
            return Ok(());
        }
        // SAFETY: the runtime terminates the text within the capacity.
        let reason = unsafe { CStr::from_ptr(error.as_ptr()) };
        eprintln!("emulated kernel {name}: {}", reason.to_string_lossy());
        Err(CUresult::CUDA_ERROR_LAUNCH_FAILED)
    }
}

/// The file that launches are written to, if any.
static LAUNCHES: Mutex<Option<File>> = Mutex::new(None);

pub fn log_launches(path: &str) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    for name in names() {
        writeln!(file, "kernel {name}")?;
    }
    *LAUNCHES.lock() = Some(file);
    Ok(())
}

/// Records that a kernel has run.
fn log_launch(name: &str, blocks: u32, threads: u32, scratchpad: usize, seed: u64) {
    if let Some(file) = LAUNCHES.lock().as_mut()
        && let Err(error) = writeln!(file, "ran {name} {blocks} {threads} {scratchpad} {seed}")
    {
        eprintln!("the launches are not all written: {error}");
    }
}
