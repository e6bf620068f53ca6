//! Unified memory: pages that move between CPU and GPU by themselves.

use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr, CUmemLocation, CUmemLocationType};

use crate::driver::{Device, Stream};
use crate::memory::{Plain, View, ViewMut};
use crate::{Error, Result};

/// Unified memory of a device, counted against its limit as if all of it lay on the device: asked for more than the
/// device has, some drivers hang.
///
/// Nothing of Overspill uses it unless told to.
#[derive(Debug)]
pub struct UnifiedBuffer {
    device: Arc<Device>,
    address: CUdeviceptr,
    bytes: u64,
}

impl UnifiedBuffer {
    /// Memory with unknown contents.
    ///
    /// # Errors
    /// If it is empty, or the device has no unified memory, or neither limit nor device has room for it.
    pub fn new(device: &Arc<Device>, bytes: u64) -> Result<Self> {
        if !device.properties().unified_memory {
            return Err(Error::Unsupported { device: device.ordinal(), what: "unified memory" });
        }
        let out_of_memory =
            || Error::OutOfDeviceMemory { device: device.ordinal(), bytes, limit: device.memory_limit() };
        device.reserve(bytes)?;
        let allocated = device.free_memory().and_then(|free| {
            if bytes > free {
                return Err(out_of_memory());
            }
            let size = usize::try_from(bytes).map_err(Error::invalid)?;
            // SAFETY: the device's context is bound.
            unsafe { result::malloc_managed(size, sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL) }.map_err(|error| {
                match error.0 {
                    sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => out_of_memory(),
                    _ => Error::driver("allocating unified memory", device.ordinal(), error),
                }
            })
        });
        match allocated {
            Ok(address) => Ok(Self { device: Arc::clone(device), address, bytes }),
            Err(error) => {
                device.release(bytes);
                Err(error)
            }
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory, for kernels that read it. Pages come as they are touched.
    pub fn view(&self) -> View<'_> {
        View::new(self.address, self.bytes)
    }

    /// The memory, for kernels that write it.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut::new(self.address, self.bytes)
    }

    /// The memory as values for the CPU to read and write: pages come back as they are touched. Waits for the device, as
    /// not every device lets the CPU in while it works.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn as_mut_slice<T: Copy + Plain>(&mut self) -> Result<&mut [T]> {
        self.device.bind()?;
        self.device.synchronize()?;
        let length = usize::try_from(self.bytes).map_err(Error::invalid)? / size_of::<T>();
        // SAFETY: the range is the buffer's, aligned to 256 bytes; every bit pattern is a value, the borrow is exclusive, and
        // the device is done with it.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address as *mut T, length) })
    }

    /// Asks the stream to bring a range to the device.
    ///
    /// # Errors
    /// If the range is not within, or the device is lost.
    pub fn prefetch(&self, stream: &Stream, offset: u64, bytes: u64) -> Result<()> {
        let part = self.view().slice(offset, bytes)?;
        let id = i32::try_from(self.device.ordinal()).map_err(Error::invalid)?;
        self.move_to(stream, part, CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id })
    }

    /// Asks the stream to bring all of it back to the CPU.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn evict(&self, stream: &Stream) -> Result<()> {
        self.move_to(stream, self.view(), CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, id: 0 })
    }

    fn move_to(&self, stream: &Stream, part: View<'_>, location: CUmemLocation) -> Result<()> {
        self.device.bind()?;
        let size = usize::try_from(part.bytes()).map_err(Error::invalid)?;
        stream.ask("move unified memory", Some(part.bytes()), |stream| {
            // SAFETY: the range lies within unified memory, which is freed only after the device is done.
            unsafe { result::mem_prefetch_async(part.address(), size, location, stream) }
                .map_err(|error| Error::driver("moving unified memory", self.device.ordinal(), error))
        })
    }
}

impl Drop for UnifiedBuffer {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new`, and freed once. The driver waits for what uses it; after the loss of the device it
            // fails, and the memory comes back with the context.
            let _ = unsafe { result::free_sync(self.address) };
        }
        self.device.release(self.bytes);
    }
}
