//! Unified memory: pages that move between CPU and GPU automatically.

use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr, CUmemLocation, CUmemLocationType};

use crate::driver::{Device, Stream};
use crate::memory::{Plain, View, ViewMut};
use crate::{Error, Result};

/// Unified memory of a device. All of it counts against the device's limit, as if it were in GPU memory: some drivers hang if
/// more is requested than the device has.
///
/// Overspill uses it only on request.
#[derive(Debug)]
pub struct UnifiedBuffer {
    device: Arc<Device>,
    address: CUdeviceptr,
    bytes: u64,
}

impl UnifiedBuffer {
    /// Allocates memory with unspecified contents.
    ///
    /// # Errors
    /// If `bytes` is 0, the device has no unified memory, or the limit or the device has no room for it.
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
                    _ => device.failed("allocating unified memory")(error),
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

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A view of the memory for kernels that read it. Pages move when they are touched.
    pub fn view(&self) -> View<'_> {
        View::new(self.address, self.bytes)
    }

    /// A view of the memory for kernels that write it.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut::new(self.address, self.bytes)
    }

    /// The memory as a slice of values for the CPU to read and write. Pages move back when they are touched. Waits for the
    /// device, as some devices do not allow CPU access while they work.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn as_mut_slice<T: Copy + Plain>(&mut self) -> Result<&mut [T]> {
        self.device.bind()?;
        self.device.synchronize()?;
        let length = usize::try_from(self.bytes).map_err(Error::invalid)? / size_of::<T>();
        // SAFETY: the range belongs to the buffer and is aligned to 256 bytes. Every bit pattern is a valid value, the borrow
        // is exclusive, and the device is done with the memory.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address as *mut T, length) })
    }

    /// Queues a move of a range to the device.
    ///
    /// # Errors
    /// If the range is outside the buffer, or the device is lost.
    pub fn prefetch(&self, stream: &Stream, offset: u64, bytes: u64) -> Result<()> {
        let part = self.view().slice(offset, bytes)?;
        let id = i32::try_from(self.device.ordinal()).map_err(Error::invalid)?;
        self.move_to(stream, part, CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id })
    }

    /// Queues a move of the whole buffer back to the CPU.
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
            // SAFETY: the range is within unified memory, which is freed only after the device is done with it.
            unsafe { result::mem_prefetch_async(part.address(), size, location, stream) }
                .map_err(self.device.failed("moving unified memory"))
        })
    }
}

impl Drop for UnifiedBuffer {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new`, and freed once. The driver waits for work that uses it. The call fails after the loss
            // of the device; the memory is then freed with the context.
            let _ = unsafe { result::free_sync(self.address) };
        }
        self.device.release(self.bytes);
    }
}
