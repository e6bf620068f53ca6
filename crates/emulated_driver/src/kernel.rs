//! Finds and runs kernels.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute, CUfunction_attribute_enum as Attribute, CUresult, CUstream,
};

use crate::control::{self, LAUNCH};
use crate::error::{Outcome, call, give};
use crate::stream::{self, Operation};
use crate::{device, memory};

/// Writes through the kernels' flush helper for CPU memory, with the layout in `host/runtime.hpp`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct FlushCounts {
    pub flushes: u64,
    pub full_lines: u64,
    pub full_line_bytes: u64,
    pub partial_lines: u64,
    pub partial_line_bytes: u64,
}

type Thunk = unsafe extern "C" fn(*mut *mut c_void);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Kernel {
    name: *const c_char,
    thunk: Option<Thunk>,
    parameter_sizes: *const usize,
    parameters: usize,
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
    fn static_shared_bytes(&self) -> usize {
        let name = self.name().to_string_lossy();
        STATIC_SHARED_BYTES.iter().find(|(start, _)| name.starts_with(start)).map_or(0, |(_, bytes)| *bytes)
    }
}

/// The names of all kernels.
pub fn names() -> impl Iterator<Item = std::borrow::Cow<'static, str>> {
    (0..).map_while(kernel_at).map(|kernel| kernel.name().to_string_lossy())
}

/// The handle of the kernel `name`: its number plus one.
pub fn find(name: &CStr) -> Option<CUfunction> {
    (0..).map_while(kernel_at).position(|kernel| kernel.name() == name).map(|number| (number + 1) as CUfunction)
}

fn of(function: CUfunction) -> Result<Kernel, CUresult> {
    (function as usize).checked_sub(1).and_then(kernel_at).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// A launch with copies of its parameters, as the caller may overwrite them when the call returns.
pub struct QueuedLaunch {
    /// The number of the device.
    pub device: usize,
    kernel: Kernel,
    /// The parameter values, each in 8-byte words so that all are aligned.
    parameters: Vec<Vec<u64>>,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    dynamic_shared_bytes: usize,
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
        let settings = control::settings();
        let launch = HostLaunch {
            thunk: self.kernel.thunk,
            parameters: pointers.as_mut_ptr(),
            grid: self.grid,
            block: self.block,
            dynamic_shared_bytes: self.dynamic_shared_bytes,
            seed: settings.seed,
            workers: settings.workers,
            is_cpu_memory: memory::is_cpu_memory,
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
            control::log_launch(&name, blocks, threads, self.dynamic_shared_bytes, settings.seed);
            return Ok(());
        }
        // SAFETY: the runtime terminates the text within the capacity.
        let reason = unsafe { CStr::from_ptr(error.as_ptr()) };
        eprintln!("emulated kernel {name}: {}", reason.to_string_lossy());
        Err(CUresult::CUDA_ERROR_LAUNCH_FAILED)
    }
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    dynamic_shared_bytes: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    call(|state| {
        let kernel = of(function)?;
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let threads = block.iter().map(|size| u64::from(*size)).product::<u64>();
        if grid.contains(&0) || threads == 0 || threads > 1024 || !extra.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let allowed = state.shared_limits.get(&(function as u64)).copied().unwrap_or(48 << 10);
        if dynamic_shared_bytes as usize > allowed {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.launches_made += 1;
        if LAUNCH.strikes() {
            return Err(CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        }
        let values = (0..kernel.parameters)
            .map(|index| {
                // SAFETY: the sizes are the kernel's, and the caller promises a pointer to a value for each.
                unsafe {
                    let bytes = *kernel.parameter_sizes.add(index);
                    let mut words = vec![0u64; bytes.div_ceil(8)];
                    std::ptr::copy_nonoverlapping(
                        (*parameters.add(index)).cast::<u8>(),
                        words.as_mut_ptr().cast::<u8>(),
                        bytes,
                    );
                    words
                }
            })
            .collect();
        let launch = QueuedLaunch {
            device: device::current()?,
            kernel,
            parameters: values,
            grid,
            block,
            dynamic_shared_bytes: dynamic_shared_bytes as usize,
        };
        stream::enqueue(state, stream, Operation::Launch(launch))
    })
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(
    place: *mut c_int,
    which: CUfunction_attribute,
    function: CUfunction,
) -> CUresult {
    call(|state| {
        let kernel = of(function)?;
        let value = match which {
            Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
            Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                state.shared_limits.get(&(function as u64)).copied().unwrap_or(48 << 10) as c_int
            }
            Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => kernel.static_shared_bytes() as c_int,
            // A value typical of a small kernel; only the GPU's compiler knows the real one.
            Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS => 32,
            _ => 0,
        };
        // SAFETY: as the caller promises.
        unsafe { give(place, value) }
    })
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(
    function: CUfunction,
    which: CUfunction_attribute,
    value: c_int,
) -> CUresult {
    call(|state| {
        let kernel = of(function)?;
        if which == Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let most = control::settings().shared - kernel.static_shared_bytes() as c_int;
            if value < 0 || value > most {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            state.shared_limits.insert(function as u64, value as usize);
        }
        Ok(())
    })
}

/// # Safety
/// As in the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    place: *mut c_int,
    function: CUfunction,
    block: c_int,
    dynamic_shared_bytes: usize,
) -> CUresult {
    call(|_| {
        of(function)?;
        if block <= 0 || block > 1024 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let by_threads = 2048 / block;
        let by_shared = (control::settings().shared as usize + 1024) / (dynamic_shared_bytes + 1024);
        // SAFETY: as the caller promises.
        unsafe { give(place, by_threads.min(by_shared as c_int).min(32)) }
    })
}
