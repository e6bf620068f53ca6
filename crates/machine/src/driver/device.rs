//! A GPU: its properties and its memory budget.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUdevice_attribute, CUdevice_attribute_enum as Attribute, CUdeviceptr, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};
use serde::Serialize;

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
    memory_limit: u64,
    held: AtomicU64,
    kept: Mutex<Kept>,
}

/// Freed memory kept for reuse.
#[derive(Debug, Default)]
struct Kept {
    /// Maximum bytes to keep; 0 if nothing is kept.
    most: u64,
    bytes: u64,
    /// Sizes and addresses, most recently freed last.
    memory: Vec<(u64, CUdeviceptr)>,
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

    /// Keeps up to `most` bytes of freed memory for later allocations. The driver waits for all kernels when memory is freed,
    /// so that without this, no kernels would run concurrently. Kept memory is freed if the limit leaves no room beside it.
    /// Once waiting for a stream has failed, nothing is kept any more, as the stream's work may not be finished.
    pub fn keep_freed_memory(&self, most: u64) {
        let mut kept = self.kept();
        kept.most = most;
        while kept.bytes > most {
            self.free_oldest(&mut kept);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // The counters are consistent between any two statements, even after a panic.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates at least `bytes` bytes, counted against the limit. Returns the address and the size.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<(CUdeviceptr, u64)> {
        self.bind()?;
        let mut kept = self.kept();
        let mut capacity = if kept.most > 0 { found_again(bytes) } else { bytes };
        if let Some(place) = kept.memory.iter().rposition(|(bytes, _)| *bytes == capacity) {
            let (_, address) = kept.memory.remove(place);
            kept.bytes -= capacity;
            self.held.fetch_add(capacity, Ordering::Relaxed);
            return Ok((address, capacity));
        }
        if self.reserve_beside(&mut kept, capacity).is_err() {
            capacity = bytes;
            self.reserve_beside(&mut kept, capacity)?;
        }
        let allocated = usize::try_from(capacity).map_err(Error::invalid).and_then(|size| {
            loop {
                // SAFETY: the size is not zero and the device's context is bound.
                match unsafe { result::malloc_sync(size) } {
                    Ok(address) => return Ok((address, capacity)),
                    Err(error) if error.0 != CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                        return Err(Error::driver("allocating memory", self.ordinal, error));
                    }
                    Err(_) if !kept.memory.is_empty() => self.free_oldest(&mut kept),
                    Err(_) => {
                        let (device, limit) = (self.ordinal, self.memory_limit);
                        return Err(Error::OutOfDeviceMemory { device, bytes, limit });
                    }
                }
            }
        });
        if allocated.is_err() {
            self.release(capacity);
        }
        allocated
    }

    /// Frees memory that [`Device::allocate`] returned. The memory may be kept if no work is left that uses it.
    pub(crate) fn give_back(&self, address: CUdeviceptr, capacity: u64, is_idle: bool) {
        let mut kept = self.kept();
        if is_idle && capacity <= kept.most {
            self.release(capacity);
            while kept.bytes + capacity > kept.most {
                self.free_oldest(&mut kept);
            }
            kept.bytes += capacity;
            kept.memory.push((capacity, address));
            return;
        }
        drop(kept);
        // Free first: bytes may be offered to others only once they are free.
        self.free(address);
        self.release(capacity);
    }

    fn free_oldest(&self, kept: &mut Kept) {
        let (bytes, address) = kept.memory.remove(0);
        kept.bytes -= bytes;
        self.free(address);
    }

    fn free(&self, address: CUdeviceptr) {
        if self.bind().is_ok() {
            // SAFETY: allocated by `allocate`, and freed once. The driver waits for work that uses it. The call fails after the
            // loss of the device; the memory is then freed with the context.
            let _ = unsafe { result::free_sync(address) };
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

    /// Makes this the current device for driver calls of this thread.
    pub(crate) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(self.failed("selecting it"))
    }

    /// Counts memory against the limit.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<()> {
        self.reserve_beside(&mut self.kept(), bytes)
    }

    fn reserve_beside(&self, kept: &mut Kept, bytes: u64) -> Result<()> {
        loop {
            // `held` grows only while the lock is held.
            let held = self.held.load(Ordering::Relaxed);
            let sum = held.checked_add(kept.bytes).and_then(|sum| sum.checked_add(bytes));
            if sum.is_some_and(|sum| sum <= self.memory_limit) {
                self.held.fetch_add(bytes, Ordering::Relaxed);
                return Ok(());
            }
            if kept.memory.is_empty() {
                return Err(Error::OverBudget { bytes, held, limit: self.memory_limit });
            }
            self.free_oldest(kept);
        }
    }

    pub(crate) fn release(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for (_, address) in std::mem::take(&mut self.kept().memory) {
            self.free(address);
        }
    }
}

/// Rounds an allocation up to one of eight sizes per power of two, so that kept memory can be reused.
fn found_again(bytes: u64) -> u64 {
    const STEPS: u64 = 8;
    const SMALLEST: u64 = 4 << 10;
    let bytes = bytes.max(SMALLEST);
    let step = bytes.checked_next_power_of_two().map_or(1, |next| next / 2 / STEPS);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
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
