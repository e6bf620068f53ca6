//! A GPU: its properties and its memory budget.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use cudarc::driver::sys::{CUdevice_attribute, CUdevice_attribute_enum as Attribute};
use cudarc::driver::{CudaContext, DriverError};
use serde::Serialize;

use super::kept::{Kept, PinnedBudget};
use super::library::{Driver, DriverKind};
use crate::{Error, Result};

/// Device properties reported by the driver. Sizes are in bytes unless named otherwise.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Properties {
    pub name: String,
    pub pci_bus_id: String,
    /// Major and minor version, such as 9.0.
    pub compute_capability: (u32, u32),
    pub memory: u64,
    pub multiprocessors: u32,
    /// Maximum scratchpad memory that one block may request.
    pub scratchpad_per_block: u64,
    pub scratchpad_per_multiprocessor: u64,
    pub l2_cache: u64,
    pub max_threads_per_block: u32,
    /// Whether kernels can read pageable memory, by any means.
    pub pageable_memory_access: bool,
    /// Whether they read it through the host's page tables: in hardware, without moving pages (NVLink-C2C, NVLink on POWER9).
    pub coherent: bool,
    /// Whether atomic operations on CPU memory are also atomic for the CPU.
    pub host_native_atomics: bool,
    pub unified_memory: bool,
    /// Whether CPU and GPU may use unified memory at the same time, and pages can be moved before a kernel runs.
    pub concurrent_unified_access: bool,
    pub virtual_memory_management: bool,
    /// Whether virtual memory management maps CPU pages.
    pub host_pages: bool,
    pub clock_kilohertz: u32,
}

/// A GPU that this process uses. All memory allocated on it is counted against a limit.
#[derive(Debug)]
pub struct Device {
    context: Arc<CudaContext>,
    ordinal: usize,
    properties: Properties,
    pub(super) memory_limit: u64,
    pub(super) held: AtomicU64,
    pub(super) kept: Mutex<Kept>,
    /// Notified when memory that is no longer kept has been freed.
    pub(super) freed: Condvar,
    pinned: PinnedBudget,
}

impl Device {
    pub(super) fn open(ordinal: usize, memory_limit: u64) -> Result<Arc<Self>> {
        let failed = |error| Error::driver("opening it", ordinal, error);
        let context = CudaContext::new(ordinal).map_err(failed)?;
        let attribute = |which: CUdevice_attribute| {
            context.attribute(which).map_err(failed).map(|value| u32::try_from(value).unwrap_or(0))
        };
        let flag = |which: CUdevice_attribute| attribute(which).map(|value| value != 0);
        let properties = Properties {
            name: context.name().map_err(failed)?,
            pci_bus_id: pci_bus_id(&context).map_err(failed)?,
            compute_capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            memory: context.total_mem().map_err(failed)? as u64,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            scratchpad_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?.into(),
            scratchpad_per_multiprocessor: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            )?
            .into(),
            l2_cache: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
            max_threads_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            pageable_memory_access: flag(Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)?,
            coherent: flag(Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)?,
            host_native_atomics: flag(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED)?,
            unified_memory: flag(Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)?,
            concurrent_unified_access: flag(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)?,
            virtual_memory_management: flag(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
            host_pages: flag(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
            clock_kilohertz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        };
        // Users of streams order them explicitly, not by events for each buffer.
        // SAFETY: this crate never uses cudarc's slices, for which the tracking exists.
        unsafe { context.disable_event_tracking() };
        Ok(Arc::new(Self {
            context,
            ordinal,
            properties,
            memory_limit,
            held: AtomicU64::new(0),
            kept: Mutex::default(),
            freed: Condvar::new(),
            pinned: PinnedBudget::default(),
        }))
    }

    /// The device number, from 0.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The device's properties.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Maximum bytes of its memory that may be in use.
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit
    }

    /// Bytes of the limit that are in use.
    pub fn memory_held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The budget for CPU memory that stays pinned for it while nothing uses it.
    pub fn pinned_budget(&self) -> &PinnedBudget {
        &self.pinned
    }

    /// Bytes of its memory that no program uses.
    ///
    /// # Errors
    /// If the device is lost.
    pub(crate) fn free_memory(&self) -> Result<u64> {
        self.bind()?;
        let (free, _) = cudarc::driver::result::mem_get_info().map_err(self.failed("asking for its free memory"))?;
        Ok(free as u64)
    }

    /// Waits until the device has finished all its work.
    ///
    /// # Errors
    /// If a kernel failed, or the device is lost.
    pub fn synchronize(&self) -> Result<()> {
        self.context.synchronize().map_err(self.failed("waiting for it"))
    }

    /// The error of a wait that has failed, after a second wait: a device that fails again is lost, by whatever name the driver
    /// calls the error.
    pub(super) fn failed_twice(&self, error: Error) -> Error {
        match (error, self.synchronize()) {
            (Error::Driver { .. }, Err(Error::Driver { reason, device, .. })) => Error::DeviceLost { device, reason },
            (_, Err(lost @ Error::DeviceLost { .. })) => lost,
            (error, _) => error,
        }
    }

    /// Converts the error of a driver call for this device. `what` names the operation that failed.
    pub(crate) fn failed(&self, what: &'static str) -> impl Fn(DriverError) -> Error + Copy + use<> {
        let ordinal = self.ordinal;
        move |error| Error::driver(what, ordinal, error)
    }

    pub(crate) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Whether its memory is CPU memory, which any code may read and write, as the stand-in's is.
    pub fn is_emulated(&self) -> bool {
        Driver::loaded().is_some_and(|driver| driver.kind() == DriverKind::Emulated)
    }

    /// Makes this the current device of this thread, for libraries that are given addresses of its memory.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn make_current(&self) -> Result<()> {
        self.bind()
    }

    /// Makes this the current device for driver calls of this thread.
    pub(crate) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(self.failed("selecting it"))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.free_all_kept();
    }
}

fn pci_bus_id(context: &CudaContext) -> Result<String, cudarc::driver::DriverError> {
    let mut text = [0u8; 32];
    // SAFETY: the buffer has the length that is passed.
    unsafe {
        cudarc::driver::sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as i32, context.cu_device())
    }
    .result()?;
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..end]).into_owned())
}
