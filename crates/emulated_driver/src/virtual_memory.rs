//! Virtual memory management.

use std::ffi::c_ulonglong;
use std::sync::atomic::Ordering;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocationType, CUresult,
};

use crate::error::{ensure, give};
use crate::pieces::{MAPPED, Mapping, Piece, RESERVED, is_mapped, map_space};
use crate::ranges::{DEVICES, Kind, PIECES, kind_of, map, used_bytes};
use crate::settings::{ALLOCATION, settings};
use crate::state::call;
use crate::work;

fn granularity() -> Result<usize, CUresult> {
    match settings().granularity {
        0 => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        bytes => Ok(bytes),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    place: *mut usize,
    _properties: *const CUmemAllocationProp,
    _option: CUmemAllocationGranularity_flags,
) -> CUresult {
    // SAFETY: as the caller promises.
    call(|_| unsafe { give(place, granularity()?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    place: *mut CUdeviceptr,
    bytes: usize,
    _alignment: usize,
    _address: CUdeviceptr,
    _flags: c_ulonglong,
) -> CUresult {
    call(|state| {
        let granularity = granularity()?;
        ensure(bytes > 0 && bytes.is_multiple_of(granularity), CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: creates a new mapping at any address, slightly larger so that its start can be aligned.
        let start = unsafe { map_space(0, bytes + granularity, RESERVED, -1) }?;
        let aligned = start.next_multiple_of(granularity);
        // SAFETY: the parts before and after the aligned range belong to the mapping just made.
        unsafe {
            if aligned > start {
                libc::munmap(start as *mut libc::c_void, aligned - start);
            }
            if start + granularity > aligned {
                libc::munmap((aligned + bytes) as *mut libc::c_void, start + granularity - aligned);
            }
        }
        state.virtual_memory.ranges.insert(aligned, bytes);
        // SAFETY: as the caller promises.
        unsafe { give(place, aligned as CUdeviceptr) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> CUresult {
    call(|state| {
        let address = address as usize;
        let memory = &mut state.virtual_memory;
        let is_unmapped = |bytes| memory.mappings.range(address..address + bytes).next().is_none();
        let is_free = memory.ranges.get(&address) == Some(&bytes) && is_unmapped(bytes);
        ensure(is_free, CUresult::CUDA_ERROR_INVALID_VALUE)?;
        memory.ranges.remove(&address);
        // SAFETY: reserved with this length, and nothing is mapped there.
        unsafe { libc::munmap(address as *mut libc::c_void, bytes) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    place: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    _flags: c_ulonglong,
) -> CUresult {
    call(|state| {
        let granularity = granularity()?;
        ensure(
            bytes > 0 && bytes.is_multiple_of(granularity) && !properties.is_null(),
            CUresult::CUDA_ERROR_INVALID_VALUE,
        )?;
        // SAFETY: not null, and the caller promises that it is valid.
        let location = unsafe { (*properties).location };
        let id = location.id;
        let kind = match location.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
                let device = usize::try_from(id).map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
                ensure(device < settings().devices.min(DEVICES), CUresult::CUDA_ERROR_INVALID_VALUE)?;
                Kind::MappedDevice(device)
            }
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => {
                ensure(settings().host_pages, CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
                Kind::MappedHost
            }
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        ensure(!ALLOCATION.strikes(), CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        if let Kind::MappedDevice(device) = kind {
            let left = settings().memory.saturating_sub(used_bytes(device));
            ensure(bytes <= left, CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        }
        // SAFETY: the name is a C string; the file is checked.
        let file = unsafe { libc::memfd_create(c"overspill-emulated".as_ptr(), libc::MFD_CLOEXEC) };
        ensure(file >= 0, CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: the file was just created.
        if unsafe { libc::ftruncate(file, bytes as libc::off_t) } != 0 {
            // SAFETY: as above.
            unsafe { libc::close(file) };
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        if let Kind::MappedDevice(device) = kind {
            PIECES[device].fetch_add(bytes, Ordering::SeqCst);
        }
        let handle = state.handle();
        state.virtual_memory.pieces.insert(handle, Piece { file, bytes, kind, released: false, mappings: 0 });
        // SAFETY: as the caller promises.
        unsafe { give(place, handle as CUmemGenericAllocationHandle) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    call(|state| {
        let memory = &mut state.virtual_memory;
        match memory.pieces.get_mut(&handle) {
            Some(piece) if !piece.released => piece.released = true,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        memory.drop_if_unused(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMap(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    _flags: c_ulonglong,
) -> CUresult {
    call(|state| {
        let address = address as usize;
        let memory = &mut state.virtual_memory;
        let reserved = memory
            .ranges
            .range(..=address)
            .next_back()
            .is_some_and(|(start, length)| address + bytes <= start + length);
        let taken = memory
            .mappings
            .range(..address + bytes)
            .next_back()
            .is_some_and(|(start, other)| start + other.bytes > address);
        // Some drivers refuse offsets, so this one does, too.
        let piece = memory.pieces.get_mut(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        ensure(reserved && !taken && offset == 0 && bytes == piece.bytes, CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: the range is reserved and nothing is mapped there.
        unsafe { map_space(address, bytes, libc::MAP_SHARED | libc::MAP_FIXED, piece.file) }?;
        piece.mappings += 1;
        state.clock.map(bytes);
        let kind = piece.kind;
        memory.mappings.insert(address, Mapping { bytes, piece: handle });
        map(address, bytes, kind);
        MAPPED.write().insert(address, bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> CUresult {
    call(|state| {
        work::run_all(state)?;
        let address = address as usize;
        let within: Vec<usize> =
            state.virtual_memory.mappings.range(address..address + bytes).map(|(start, _)| *start).collect();
        ensure(!within.is_empty(), CUresult::CUDA_ERROR_INVALID_VALUE)?;
        for start in within {
            state.virtual_memory.unmap(start);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    bytes: usize,
    descriptors: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    call(|state| {
        let address = address as usize;
        ensure(is_mapped(address, bytes) && !descriptors.is_null(), CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: the caller promises `count` descriptors.
        let descriptors = unsafe { std::slice::from_raw_parts(descriptors, count) };
        let writable = descriptors
            .iter()
            .any(|descriptor| descriptor.flags == CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        ensure(writable, CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        let starts = state.virtual_memory.mappings.range(..address + bytes).rev();
        let owners =
            starts.take_while(|(start, mapping)| *start + mapping.bytes > address).filter_map(
                |(start, _)| match kind_of(*start) {
                    Some(Kind::MappedDevice(owner)) => i32::try_from(owner).ok(),
                    _ => None,
                },
            );
        let is_peers = |owner| descriptors.iter().any(|descriptor| descriptor.location.id != owner);
        ensure(settings().peer_access || !owners.into_iter().any(is_peers), CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        // SAFETY: the range is mapped.
        let refused =
            unsafe { libc::mprotect(address as *mut libc::c_void, bytes, libc::PROT_READ | libc::PROT_WRITE) };
        ensure(refused == 0, CUresult::CUDA_ERROR_INVALID_VALUE)
    })
}
