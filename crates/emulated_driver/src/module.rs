//! Modules. Loading any image gives the kernels that this library was built with.

use std::ffi::{CStr, c_char, c_void};

use cudarc::driver::sys::{CUfunction, CUmodule, CUresult};

use crate::context;
use crate::error::{ensure, give};
use crate::launch;
use crate::state::call;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(place: *mut CUmodule, image: *const c_void) -> CUresult {
    call(|state| {
        ensure(!image.is_null(), CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let handle = state.handle();
        state.modules.insert(handle, context::current()?);
        // SAFETY: as the caller promises.
        unsafe { give(place, handle as CUmodule) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    place: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> CUresult {
    call(|state| {
        ensure(state.modules.contains_key(&(module as u64)), CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        // SAFETY: the caller promises a C string.
        let number = launch::find(unsafe { CStr::from_ptr(name) }).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        // SAFETY: as the caller promises.
        unsafe { give(place, launch::handle(module as u64, number)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: CUmodule) -> CUresult {
    call(|state| {
        state.shared_limits.retain(|function, _| launch::module_of(*function) != module as u64);
        state.modules.remove(&(module as u64)).map(|_| ()).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    })
}
