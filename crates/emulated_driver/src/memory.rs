//! Memory of devices, unified memory, and pinned host memory.

use std::ffi::{c_uint, c_void};

use cudarc::driver::sys::{CUdeviceptr, CUresult};

use crate::error::{ensure, give};
use crate::ranges::{self, Kind, allocate, free, kind_of, used_bytes};
use crate::settings::{REGISTRATION, settings};
use crate::state::call;
use crate::{context, work};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(place: *mut CUdeviceptr, bytes: usize) -> CUresult {
    call(|_| {
        let address = allocate(bytes, Kind::Device(context::current()?))?;
        // SAFETY: as the caller promises.
        unsafe { give(place, address as CUdeviceptr) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    call(|state| {
        // Freeing waits for the device's work.
        state.clock.wait();
        work::run_current(state)?;
        free(address as usize)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocManaged(place: *mut CUdeviceptr, bytes: usize, _flags: c_uint) -> CUresult {
    call(|_| {
        let address = allocate(bytes, Kind::Unified(context::current()?))?;
        // SAFETY: as the caller promises.
        unsafe { give(place, address as CUdeviceptr) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, _flags: c_uint) -> CUresult {
    call(|state| {
        ensure(!address.is_null() && bytes > 0, CUresult::CUDA_ERROR_INVALID_VALUE)?;
        state.clock.register(bytes);
        let mut memory = ranges::MEMORY.write();
        ensure(!REGISTRATION.strikes(), CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let start = address as usize;
        let overlaps =
            memory.ranges.range(..start + bytes).next_back().is_some_and(|(other, range)| other + range.bytes > start);
        ensure(!overlaps, CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)?;
        memory.ranges.insert(start, ranges::Range { bytes, kind: Kind::Registered });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostUnregister(address: *mut c_void) -> CUresult {
    call(|state| {
        work::run_all(state)?;
        let mut memory = ranges::MEMORY.write();
        match memory.ranges.get(&(address as usize)) {
            Some(range) if range.kind == Kind::Registered => {
                memory.ranges.remove(&(address as usize));
                Ok(())
            }
            _ => Err(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    place: *mut CUdeviceptr,
    address: *mut c_void,
    _flags: c_uint,
) -> CUresult {
    call(|_| match kind_of(address as usize) {
        // SAFETY: as the caller promises.
        Some(Kind::Registered) => unsafe { give(place, address as CUdeviceptr) },
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    call(|_| {
        let limit = settings().memory;
        // SAFETY: as the caller promises.
        unsafe {
            give(free, limit.saturating_sub(used_bytes(context::current()?)))?;
            give(total, limit)
        }
    })
}
