//! Launches of kernels, and their attributes.

use std::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute, CUfunction_attribute_enum as Attribute, CUresult, CUstream,
};

use crate::context;
use crate::error::{ensure, give};
use crate::launch::{QueuedLaunch, of};
use crate::queue::Operation;
use crate::settings::{LAUNCH, settings};
use crate::state::call;
use crate::work::enqueue;

const THREADS_PER_MULTIPROCESSOR: c_int = 2048;
/// Bytes of scratchpad memory of a block that the driver takes.
pub const SHARED_OF_THE_DRIVER: usize = 1 << 10;

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
        ensure(
            !grid.contains(&0) && (1..=1024).contains(&threads) && extra.is_null(),
            CUresult::CUDA_ERROR_INVALID_VALUE,
        )?;
        // Without opting in, the limit holds for static and dynamic scratchpad memory together.
        let for_all = (48 << 10) - kernel.static_shared_bytes();
        let allowed = state.shared_limits.get(&(function as u64)).copied().unwrap_or(0).max(for_all);
        ensure(dynamic_shared_bytes as usize <= allowed, CUresult::CUDA_ERROR_INVALID_VALUE)?;
        state.clock.launch();
        ensure(!LAUNCH.strikes(), CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)?;
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
            device: context::current()?,
            kernel,
            parameters: values,
            grid,
            block,
            dynamic_shared_bytes: dynamic_shared_bytes as usize,
        };
        enqueue(state, stream, Operation::Launch(launch))
    })
}

/// Registers limit nothing here: threads and scratchpad memory do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    place: *mut c_int,
    function: CUfunction,
    threads: c_int,
    dynamic_shared_bytes: usize,
) -> CUresult {
    call(|_| {
        let kernel = of(function)?;
        ensure((1..=1024).contains(&threads), CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let by_threads = THREADS_PER_MULTIPROCESSOR / threads;
        let shared = dynamic_shared_bytes + kernel.static_shared_bytes() + SHARED_OF_THE_DRIVER;
        let by_shared = (settings().shared as usize + SHARED_OF_THE_DRIVER) / shared;
        let by_shared = c_int::try_from(by_shared).unwrap_or(c_int::MAX);
        // SAFETY: as the caller promises.
        unsafe { give(place, by_threads.min(by_shared)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncGetAttribute(
    place: *mut c_int,
    which: CUfunction_attribute,
    function: CUfunction,
) -> CUresult {
    call(|_| {
        let kernel = of(function)?;
        let value = match which {
            Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => kernel.static_shared_bytes() as c_int,
            _ => 0,
        };
        // SAFETY: as the caller promises.
        unsafe { give(place, value) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(
    function: CUfunction,
    which: CUfunction_attribute,
    value: c_int,
) -> CUresult {
    call(|state| {
        let kernel = of(function)?;
        if which == Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let most = settings().shared - kernel.static_shared_bytes() as c_int;
            ensure((0..=most).contains(&value), CUresult::CUDA_ERROR_INVALID_VALUE)?;
            state.shared_limits.insert(function as u64, value as usize);
        }
        Ok(())
    })
}
