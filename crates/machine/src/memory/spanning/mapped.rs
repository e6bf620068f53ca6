//! Addresses mapped to pages of several memories, using the driver's virtual memory management.

use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags as Granularity,
    CUmemAllocationHandleType_enum, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemLocation, CUmemLocationType, CUresult,
};

use tracing::debug_span;

use super::layout::{Layout, Place, SpanningLayout};
use crate::driver::{Device, MappedPages, MappedRun};
use crate::{Error, Result};

/// A reserved address range and the runs of stripes mapped to it, from its start.
#[derive(Debug)]
pub(super) struct MappedRange {
    devices: Vec<Arc<Device>>,
    pages: MappedPages,
    /// Whether all of it is mapped, so that it may be kept for another range.
    is_whole: bool,
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
        let runs: Vec<_> = { places.chunk_by(|one, other| one == other) }
            .map(|run| MappedRun { device: device_of(run[0]), bytes: run.len() * stripe })
            .collect();
        let is_even = layout.layout == Layout::Interleaved;
        if let [device] = devices
            && let Some(pages) = device.take_pages(&runs, layout.node, is_even)
        {
            return Ok(Self { devices: devices.to_vec(), pages, is_whole: true });
        }
        let pages = MappedPages { address: 0, reserved, runs: Vec::new(), node: layout.node, is_even };
        let mut range = Self { devices: devices.to_vec(), pages, is_whole: false };
        if reserved == 0 {
            return Ok(range);
        }
        let _mapping = debug_span!("map memory", bytes = reserved).entered();
        first.bind()?;
        // SAFETY: the output pointer is valid; address and alignment are left to the driver.
        unsafe { sys::cuMemAddressReserve(&mut range.pages.address, reserved, 0, 0, 0) }
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
        // `range` tracks the runs mapped so far, and unmaps them if a later one fails.
        for run in runs {
            range.map_next(run, layout.node)?;
        }
        first.bind()?;
        // SAFETY: the whole range is mapped, and the length passed is that of the descriptions.
        unsafe { sys::cuMemSetAccess(range.pages.address, reserved, access.as_ptr(), access.len()) }
            .result()
            .map_err(first.failed("giving access to mapped memory"))?;
        range.is_whole = true;
        Ok(range)
    }

    /// The runs of pages, which may have more bytes than the range was asked for.
    pub fn runs(&self) -> &[MappedRun] {
        &self.pages.runs
    }

    pub fn address(&self) -> CUdeviceptr {
        self.pages.address
    }

    fn map_next(&mut self, run: MappedRun, node: u32) -> Result<()> {
        let (size, bytes) = (run.bytes, run.bytes as u64);
        let (device, location) = match run.device {
            Some(number) => (&self.devices[number], device_location(&self.devices[number])?),
            None => (&self.devices[0], host_location(node)?),
        };
        let ordinal = device.ordinal();
        if run.device.is_some() {
            device.reserve(bytes)?;
        }
        let begun: usize = self.pages.runs.iter().map(|run| run.bytes).sum();
        let (address, runs) = (self.pages.address + begun as u64, self.pages.runs.len());
        let mapped = device.bind().and_then(|()| {
            let mut handle = 0;
            // SAFETY: both places are valid for the call.
            unsafe { sys::cuMemCreate(&mut handle, size, &properties_of(location), 0) }.result().map_err(
                |error| match (error.0, run.device) {
                    (CUresult::CUDA_ERROR_OUT_OF_MEMORY, None) => Error::OutOfHostMemory {
                        bytes,
                        reason: format!("node {node} has none left that the driver can pin"),
                    },
                    (CUresult::CUDA_ERROR_OUT_OF_MEMORY, Some(_)) => {
                        Error::OutOfDeviceMemory { device: ordinal, bytes, limit: device.memory_limit() }
                    }
                    _ => Error::driver("allocating mapped memory", ordinal, error),
                },
            )?;
            // SAFETY: the addresses are reserved and nothing is mapped to them. Each run has its own handle, because some drivers
            // refuse to map from the middle of one.
            let mapped = unsafe { sys::cuMemMap(address, size, 0, handle, 0) }.result();
            // SAFETY: created above, released once. If the handle is mapped, its memory stays until it is unmapped.
            let released = unsafe { sys::cuMemRelease(handle) }.result();
            mapped.map_err(device.failed("mapping memory"))?;
            self.pages.runs.push(run);
            released.map_err(device.failed("mapping memory"))
        });
        // Runs in `pages` are released when the range is dropped.
        if mapped.is_err()
            && self.pages.runs.len() == runs
            && let Some(number) = run.device
        {
            self.devices[number].release(bytes);
        }
        mapped
    }
}

impl Drop for MappedRange {
    fn drop(&mut self) {
        if self.pages.reserved == 0 {
            return;
        }
        // Unmapping does not wait for kernels. Memory of a lost device is freed with its context. Addresses belong to the
        // process, and any device that is not lost can free them.
        let waited: Vec<_> = self.devices.iter().map(|device| device.synchronize().is_ok()).collect();
        let nothing = MappedPages { address: 0, reserved: 0, runs: Vec::new(), node: 0, is_even: false };
        let pages = std::mem::replace(&mut self.pages, nothing);
        if let [device] = self.devices.as_slice()
            && waited == [true]
            && self.is_whole
        {
            // SAFETY: `new` has reserved and mapped them, and the device has finished all its work.
            return unsafe { device.keep_pages(pages) };
        }
        let living = self.devices.iter().zip(waited).find(|(_, is_idle)| *is_idle);
        let _ = living.map_or(&self.devices[0], |(device, _)| device).bind();
        // SAFETY: as above, and the context of a living device is bound, if there is one.
        unsafe { pages.free() };
        for run in &pages.runs {
            if let Some(number) = run.device {
                self.devices[number].release(run.bytes as u64);
            }
        }
    }
}

/// The number of the device that holds a stripe.
fn device_of(place: Place) -> Option<usize> {
    match place {
        Place::Device(number) => Some(number),
        Place::Host => None,
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
