//! Loads the driver library and checks that this crate can use it.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;

use cudarc::driver::{result, sys};

use crate::driver::Device;
use crate::{Error, Result};

/// The version of CUDA that compiled the kernels: an older driver does not read their image.
const MINIMUM_VERSION: i32 = 13000;

/// Every driver function that this crate calls. cudarc panics at the first use of a missing function.
const SYMBOLS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetP2PAttribute",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAllocManaged",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFree_v2",
    "cuMemGetAllocationGranularity",
    "cuMemGetInfo_v2",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemMap",
    "cuMemPrefetchAsync_v2",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// The kind of driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverKind {
    /// NVIDIA's driver, for a GPU.
    Nvidia,
    /// The stand-in. Kernels run on the CPU, so measured speeds mean nothing.
    Emulated,
}

impl DriverKind {
    fn words(self) -> &'static str {
        match self {
            Self::Nvidia => "a GPU",
            Self::Emulated => "the emulated device",
        }
    }
}

/// The loaded driver.
#[derive(Debug)]
pub struct Driver {
    kind: DriverKind,
    device_count: usize,
}

static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();

impl Driver {
    /// Loads NVIDIA's driver.
    ///
    /// # Errors
    /// If there is none, it is too old or lacks a function, it finds no GPU, or the stand-in was loaded before.
    pub fn nvidia() -> Result<&'static Self> {
        Self::load(DriverKind::Nvidia, || Ok(()))
    }

    /// Loads the stand-in at `library`. Its library name is that of the driver, so the dynamic linker returns the stand-in to
    /// later requests for the driver.
    ///
    /// # Errors
    /// If it cannot be loaded, or NVIDIA's driver was loaded before.
    pub fn emulated(library: &Path) -> Result<&'static Self> {
        Self::load(DriverKind::Emulated, || {
            let failed = |reason: String| Error::NoEmulatedDriver { path: library.display().to_string(), reason };
            let path = CString::new(library.as_os_str().as_bytes()).map_err(|error| failed(error.to_string()))?;
            // SAFETY: the path is a C string. When loaded, the library starts no thread and touches nothing of this program.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            if handle.is_null() {
                // SAFETY: `dlerror` returns the text of the failure that just occurred on this thread.
                let text = unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) };
                return Err(failed(text.to_string_lossy().into_owned()));
            }
            Ok(())
        })
    }

    fn load(kind: DriverKind, before: impl FnOnce() -> Result<()>) -> Result<&'static Self> {
        let driver = DRIVER.get_or_init(|| {
            before()?;
            Self::initialise(kind)
        });
        match driver {
            Ok(driver) if driver.kind != kind => {
                Err(Error::DriverChosenBefore { chosen: driver.kind.words(), asked: kind.words() })
            }
            Ok(driver) => Ok(driver),
            Err(error) => Err(error.clone()),
        }
    }

    fn initialise(kind: DriverKind) -> Result<Self> {
        // SAFETY: only looks for a library by its name.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoDriver);
        }
        for symbol in SYMBOLS {
            // SAFETY: the library is loaded. The symbol is only looked up, never called as this type.
            if unsafe { sys::culib().get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_err() {
                return Err(Error::MissingSymbol { symbol });
            }
        }
        let mut version = 0;
        // SAFETY: the place is valid, and the function may be called before initialisation.
        unsafe { sys::cuDriverGetVersion(&mut version) }
            .result()
            .map_err(|error| Error::driver("asking for its version", 0, error))?;
        if version < MINIMUM_VERSION {
            return Err(Error::DriverTooOld { found: version, needed: MINIMUM_VERSION });
        }
        result::init().map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_NO_DEVICE => Error::NoDevice,
            _ => Error::driver("starting the driver", 0, error),
        })?;
        let count = result::device::get_count().map_err(|error| Error::driver("counting GPUs", 0, error))?;
        let device_count = usize::try_from(count).unwrap_or(0);
        if device_count == 0 {
            return Err(Error::NoDevice);
        }
        Ok(Self { kind, device_count })
    }

    /// The driver that was loaded; `None` before one is.
    pub(super) fn loaded() -> Option<&'static Self> {
        DRIVER.get()?.as_ref().ok()
    }

    /// The kind of driver.
    pub fn kind(&self) -> DriverKind {
        self.kind
    }

    /// Number of devices.
    pub fn device_count(&self) -> usize {
        self.device_count
    }

    /// Bytes of a device's memory. Unlike opening the device it makes no context, which can take a second.
    ///
    /// # Errors
    /// If there is no device with this number, or the driver does not answer.
    pub fn device_memory(&self, ordinal: usize) -> Result<u64> {
        self.check(ordinal)?;
        let failed = |error| Error::driver("asking for its memory", ordinal, error);
        let device = result::device::get(i32::try_from(ordinal).map_err(Error::invalid)?).map_err(failed)?;
        // SAFETY: the driver has just named this device.
        unsafe { result::device::total_mem(device) }.map(|bytes| bytes as u64).map_err(failed)
    }

    fn check(&self, ordinal: usize) -> Result<()> {
        if ordinal < self.device_count {
            return Ok(());
        }
        Err(Error::NoSuchDevice { ordinal, count: self.device_count })
    }

    /// Opens a device. Allocations through the returned value take at most `memory_limit` bytes of its memory.
    ///
    /// # Errors
    /// If there is no device with this number, or the driver cannot use it.
    pub fn device(&'static self, ordinal: usize, memory_limit: u64) -> Result<Arc<Device>> {
        self.check(ordinal)?;
        Device::open(ordinal, memory_limit)
    }
}
