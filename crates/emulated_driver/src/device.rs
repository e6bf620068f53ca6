//! Devices and their primary contexts.

use std::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUdevice_attribute_enum as Attribute, CUresult,
};

use crate::context::CURRENT;
use crate::control::read_environment;
use crate::error::{Outcome, code, give};
use crate::kernel::SHARED_OF_THE_DRIVER;
use crate::settings::settings;
use crate::state::{State, call};
use crate::work;

/// The device name that the product shows. Users must not mistake it for a GPU.
const NAME: &str = "Overspill emulated device (no GPU)";

/// The PCI bus id of a device. No machine has a domain with this number.
pub fn pci_bus_id(device: usize) -> String {
    format!("FFFF:{device:02X}:00.0")
}

fn checked(device: CUdevice) -> Result<usize, CUresult> {
    usize::try_from(device)
        .ok()
        .filter(|device| *device < settings().devices)
        .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(_flags: c_uint) -> CUresult {
    read_environment();
    let devices = settings().devices;
    if devices == 0 {
        return CUresult::CUDA_ERROR_NO_DEVICE;
    }
    let mut state = State::lock();
    state.initialised = true;
    let held = state.contexts.len().max(devices);
    state.contexts.resize(held, 0);
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(place: *mut c_int) -> CUresult {
    read_environment();
    // SAFETY: as the caller promises.
    code(unsafe { give(place, settings().driver) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(place: *mut c_int) -> CUresult {
    // SAFETY: as the caller promises.
    call(|_| unsafe { give(place, settings().devices as c_int) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(place: *mut CUdevice, ordinal: c_int) -> CUresult {
    // SAFETY: as the caller promises.
    call(|_| unsafe { give(place, checked(ordinal)? as CUdevice) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(place: *mut c_char, length: c_int, device: CUdevice) -> CUresult {
    call(|_| {
        checked(device)?;
        // SAFETY: the caller promises `length` bytes.
        unsafe { give_text(place, length, NAME) }
    })
}

/// # Safety
/// `place` is valid for `length` bytes.
unsafe fn give_text(place: *mut c_char, length: c_int, text: &str) -> Outcome {
    let room = usize::try_from(length).ok().and_then(|length| length.checked_sub(1));
    let room = room.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let bytes = &text.as_bytes()[..text.len().min(room)];
    // SAFETY: the text and its terminator fit.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        place.add(bytes.len()).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(place: *mut c_char, length: c_int, device: CUdevice) -> CUresult {
    call(|_| {
        // SAFETY: the caller promises `length` bytes.
        unsafe { give_text(place, length, &pci_bus_id(checked(device)?)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(place: *mut usize, device: CUdevice) -> CUresult {
    call(|_| {
        checked(device)?;
        // SAFETY: as the caller promises.
        unsafe { give(place, settings().memory) }
    })
}

/// The attributes that Overspill queries, for a small device of the ninth generation.
fn attribute(attribute: CUdevice_attribute) -> c_int {
    let settings = settings();
    let flag = |on: bool| c_int::from(on);
    match attribute {
        Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => settings.multiprocessors,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 0,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => settings.shared,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => {
            settings.shared + SHARED_OF_THE_DRIVER as c_int
        }
        Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => 1 << 20,
        Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE => 1_000_000,
        Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY => 1,
        Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS => 1,
        Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => flag(settings.granularity != 0),
        Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => {
            flag(settings.granularity != 0 && settings.host_pages)
        }
        Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
        | Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
        | Attribute::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED => flag(settings.coherent),
        _ => 0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    place: *mut c_int,
    which: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    call(|_| {
        checked(device)?;
        // SAFETY: as the caller promises.
        unsafe { give(place, attribute(which)) }
    })
}

/// Checks two devices, which must exist and differ.
fn checked_pair(device: CUdevice, peer: CUdevice) -> Result<(usize, usize), CUresult> {
    match (checked(device)?, checked(peer)?) {
        (device, peer) if device == peer => Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
        pair => Ok(pair),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(place: *mut c_int, device: CUdevice, peer: CUdevice) -> CUresult {
    call(|_| {
        checked_pair(device, peer)?;
        // SAFETY: as the caller promises.
        unsafe { give(place, c_int::from(settings().peer_access)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetP2PAttribute(
    place: *mut c_int,
    which: CUdevice_P2PAttribute,
    device: CUdevice,
    peer: CUdevice,
) -> CUresult {
    call(|_| {
        checked_pair(device, peer)?;
        let settings = settings();
        let value = match which {
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED => settings.peer_access,
            CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => {
                settings.peer_access && settings.peer_atomics
            }
            _ => false,
        };
        // SAFETY: as the caller promises.
        unsafe { give(place, c_int::from(value)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(place: *mut CUcontext, device: CUdevice) -> CUresult {
    call(|state| {
        let device = checked(device)?;
        if let Some(error) = state.lost.get(&device) {
            return Err(*error);
        }
        state.contexts[device] += 1;
        // SAFETY: as the caller promises. A context is only ever compared, never read through.
        unsafe { give(place, (device + 1) as CUcontext) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    // Works also after the device was lost, as this releases its memory.
    let mut state = State::lock();
    let Ok(device) = checked(device) else { return CUresult::CUDA_ERROR_INVALID_DEVICE };
    if state.contexts[device] == 0 {
        return CUresult::CUDA_ERROR_INVALID_CONTEXT;
    }
    state.contexts[device] -= 1;
    if state.contexts[device] == 0 {
        state.destroy_context(device);
    }
    if state.contexts.iter().all(|held| *held == 0) {
        state.destroy_contexts();
    }
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    CURRENT.set(context as usize);
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(place: *mut CUcontext) -> CUresult {
    // SAFETY: as the caller promises.
    code(unsafe { give(place, CURRENT.get() as CUcontext) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    call(|state| {
        state.clock.wait();
        work::run_current(state)
    })
}
