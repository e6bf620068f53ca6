//! Copies and fills.

use std::ffi::{c_uchar, c_uint, c_void};

use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUmemLocation, CUresult, CUstream};

use crate::context;
use crate::error::{Outcome, ensure};
use crate::pieces::is_mapped;
use crate::queue::{Operation, name};
use crate::ranges::{self, Kind};
use crate::settings::COPY;
use crate::state::{State, call};
use crate::work::{enqueue, run};

/// Whether an asynchronous copy may access this host memory when it runs, instead of when it is enqueued.
fn is_pinned(address: usize, bytes: usize) -> bool {
    matches!(ranges::kind_of(address), Some(Kind::Registered | Kind::MappedHost)) && ranges::contains(address, bytes)
}

/// Checks that the driver knows the range. On a GPU, too, a copy past the end of an allocation is an error.
fn check_device_range(address: usize, bytes: usize) -> Outcome {
    ensure(ranges::contains(address, bytes) || is_mapped(address, bytes), CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn count(state: &mut State, bytes: usize) -> Outcome {
    state.clock.copy(bytes);
    ensure(!COPY.strikes(), CUresult::CUDA_ERROR_INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call(|state| {
        count(state, bytes)?;
        check_device_range(to as usize, bytes)?;
        if is_pinned(from as usize, bytes) {
            let copy = Operation::Copy { to: to as usize, from: from as usize, bytes };
            return enqueue(state, stream, copy);
        }
        // SAFETY: the caller promises the range. Pageable memory has been read when the call returns.
        let data = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
        enqueue(state, stream, Operation::CopyStaged { to: to as usize, data })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call(|state| {
        count(state, bytes)?;
        check_device_range(from as usize, bytes)?;
        enqueue(state, stream, Operation::Copy { to: to as usize, from: from as usize, bytes })?;
        if is_pinned(to as usize, bytes) {
            return Ok(());
        }
        // A copy to pageable memory is done when the call returns.
        let name = name(stream)?;
        run(state, name, None)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call(|state| {
        // It does not cross the link.
        ensure(!COPY.strikes(), CUresult::CUDA_ERROR_INVALID_VALUE)?;
        check_device_range(from as usize, bytes)?;
        check_device_range(to as usize, bytes)?;
        enqueue(state, stream, Operation::Copy { to: to as usize, from: from as usize, bytes })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    call(|state| {
        count(state, bytes)?;
        for (address, context) in [(to, to_context), (from, from_context)] {
            check_device_range(address as usize, bytes)?;
            let device = context::device_of(context)?;
            let is_its = matches!(ranges::kind_of(address as usize), Some(Kind::Device(of)) if of == device);
            ensure(is_its, CUresult::CUDA_ERROR_INVALID_VALUE)?;
        }
        enqueue(state, stream, Operation::Copy { to: to as usize, from: from as usize, bytes })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, bytes: usize, stream: CUstream) -> CUresult {
    call(|state| {
        check_device_range(to as usize, bytes)?;
        enqueue(state, stream, Operation::Fill { to: to as usize, bytes, value })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPrefetchAsync_v2(
    address: CUdeviceptr,
    bytes: usize,
    _location: CUmemLocation,
    _flags: c_uint,
    _stream: CUstream,
) -> CUresult {
    call(|_| {
        let is_unified = matches!(ranges::kind_of(address as usize), Some(Kind::Unified(_)));
        ensure(is_unified && ranges::contains(address as usize, bytes), CUresult::CUDA_ERROR_INVALID_VALUE)
    })
}
