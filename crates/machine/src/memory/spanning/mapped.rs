//! Addresses mapped to pages of several memories, using the driver's virtual memory management.

use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags as Granularity,
    CUmemAllocationHandleType_enum, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemLocation, CUmemLocationType, CUresult,
};

use super::layout::{Place, SpanningLayout};
use crate::driver::Device;
use crate::{Error, Result};

/// A reserved address range and the stripes mapped to it, from its start.
#[derive(Debug)]
pub(super) struct MappedRange {
    devices: Vec<Arc<Device>>,
    address: CUdeviceptr,
    reserved: usize,
    stripe: usize,
    /// The memory of each mapped stripe.
    mapped: Vec<Place>,
}

/// Returns the requested stripe size, rounded up to the driver's granularity. A layout that is only on devices does not require
/// CPU pages.
pub(super) fn stripe_bytes(devices: &[Arc<Device>], layout: &SpanningLayout) -> Result<u64> {
    let mut stripe = layout.stripe_bytes;
    let host = (layout.host_bytes() > 0).then(|| host_location(layout.node)).transpose()?;
    for device in devices {
        let properties = device.properties();
        if !properties.virtual_memory_management || (host.is_some() && !properties.host_pages) {
            let what = match host {
                Some(_) => "virtual memory management that maps CPU pages",
                None => "virtual memory management",
            };
            return Err(Error::Unsupported { device: device.ordinal(), what });
        }
        for location in [Some(device_location(device)?), host].into_iter().flatten() {
            let mut granularity = 0;
            device.bind()?;
            let option = Granularity::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
            // SAFETY: both places are valid for the call.
            unsafe { sys::cuMemGetAllocationGranularity(&mut granularity, &properties_of(location), option) }
                .result()
                .map_err(device.failed("asking for the page size"))?;
            stripe = stripe.next_multiple_of((granularity as u64).max(1));
        }
    }
    Ok(stripe)
}

impl MappedRange {
    pub fn new(devices: &[Arc<Device>], places: &[Place], layout: &SpanningLayout) -> Result<Self> {
        let first = &devices[0];
        let stripe = usize::try_from(layout.stripe_bytes).map_err(Error::invalid)?;
        let reserved =
            stripe.checked_mul(places.len()).ok_or_else(|| Error::invalid("a range of that size cannot be"))?;
        let mut range = Self { devices: devices.to_vec(), address: 0, reserved, stripe, mapped: Vec::new() };
        if reserved == 0 {
            return Ok(range);
        }
        first.bind()?;
        // SAFETY: the output pointer is valid; address and alignment are left to the driver.
        unsafe { sys::cuMemAddressReserve(&mut range.address, reserved, 0, 0, 0) }
            .result()
            .map_err(first.failed("reserving addresses"))?;
        let access = devices
            .iter()
            .map(|device| {
                Ok(CUmemAccessDesc {
                    location: device_location(device)?,
                    flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        // `range` tracks the stripes mapped so far, and unmaps them if a later stripe fails.
        for place in places {
            range.map_next(*place, layout.node, &access)?;
        }
        Ok(range)
    }

    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    fn map_next(&mut self, place: Place, node: u32, access: &[CUmemAccessDesc]) -> Result<()> {
        let bytes = self.stripe as u64;
        let (device, location) = match place {
            Place::Device(number) => (&self.devices[number], device_location(&self.devices[number])?),
            Place::Host => (&self.devices[0], host_location(node)?),
        };
        let ordinal = device.ordinal();
        if place != Place::Host {
            device.reserve(bytes)?;
        }
        let address = self.address + self.mapped.len() as u64 * bytes;
        let mapped = device.bind().and_then(|()| {
            let mut handle = 0;
            // SAFETY: both places are valid for the call.
            unsafe { sys::cuMemCreate(&mut handle, self.stripe, &properties_of(location), 0) }.result().map_err(
                |error| match (error.0, place) {
                    (CUresult::CUDA_ERROR_OUT_OF_MEMORY, Place::Host) => Error::OutOfHostMemory {
                        bytes,
                        reason: format!("node {node} has none left that the driver can pin"),
                    },
                    (CUresult::CUDA_ERROR_OUT_OF_MEMORY, Place::Device(_)) => {
                        Error::OutOfDeviceMemory { device: ordinal, bytes, limit: device.memory_limit() }
                    }
                    _ => Error::driver("allocating a stripe", ordinal, error),
                },
            )?;
            // SAFETY: the addresses are reserved and nothing is mapped to them. Each stripe has its own handle, because some
            // drivers refuse to map from the middle of one.
            let mapped = unsafe { sys::cuMemMap(address, self.stripe, 0, handle, 0) }.result();
            // SAFETY: created above, released once. If the handle is mapped, its memory stays until it is unmapped.
            let released = unsafe { sys::cuMemRelease(handle) }.result();
            mapped.map_err(device.failed("mapping a stripe"))?;
            self.mapped.push(place);
            released.map_err(device.failed("mapping a stripe"))
        });
        if let Err(error) = mapped {
            // Stripes in `mapped` are released when the range is dropped.
            let counted = (address - self.address) / bytes < self.mapped.len() as u64;
            if !counted && let Place::Device(number) = place {
                self.devices[number].release(bytes);
            }
            return Err(error);
        }
        // SAFETY: the range was just mapped, and the length passed is that of the descriptions.
        unsafe { sys::cuMemSetAccess(address, self.stripe, access.as_ptr(), access.len()) }
            .result()
            .map_err(device.failed("giving access to a stripe"))
    }
}

impl Drop for MappedRange {
    fn drop(&mut self) {
        if self.reserved > 0 {
            // Unmapping does not wait for kernels. Memory of a lost device is freed with its context. Addresses belong to the
            // process, and any device that is not lost can free them.
            let waited: Vec<_> = self.devices.iter().map(|device| device.synchronize().is_ok()).collect();
            let living = self.devices.iter().zip(waited).find(|(_, is_idle)| *is_idle);
            let _ = living.map_or(&self.devices[0], |(device, _)| device).bind();
            for number in 0..self.mapped.len() {
                let address = self.address + (number * self.stripe) as u64;
                // SAFETY: mapped by `map_next`, and unmapped only once.
                let _ = unsafe { sys::cuMemUnmap(address, self.stripe) }.result();
            }
            if self.address != 0 {
                // SAFETY: reserved by `new` with this length, and nothing is mapped to it any more.
                let _ = unsafe { sys::cuMemAddressFree(self.address, self.reserved) }.result();
            }
        }
        for place in &self.mapped {
            if let Place::Device(number) = place {
                self.devices[*number].release(self.stripe as u64);
            }
        }
    }
}

fn device_location(device: &Device) -> Result<CUmemLocation> {
    let id = i32::try_from(device.ordinal()).map_err(Error::invalid)?;
    Ok(CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id })
}

fn host_location(node: u32) -> Result<CUmemLocation> {
    let id = i32::try_from(node).map_err(Error::invalid)?;
    Ok(CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, id })
}

fn properties_of(location: CUmemLocation) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_NONE,
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
