//! Kernel modules and launches.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result;
use cudarc::driver::sys::{CUfunction, CUfunction_attribute_enum as Attribute, CUmodule};

use crate::driver::{Device, Stream};
use crate::{Error, Result};

/// Bytes of scratchpad memory, static and dynamic together, that a block may have without opting in.
const SCRATCHPAD_FOR_ALL: u64 = 48 << 10;

/// Kernels, loaded onto a device.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    module: CUmodule,
    /// The scratchpad memory that blocks of each kernel were allowed to request. It only grows: another thread may be about to launch the
    /// same kernel with more.
    allowed: Mutex<HashMap<usize, u64>>,
}

// SAFETY: a module is a handle that the driver lets any thread use.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a fatbin.
    ///
    /// # Errors
    /// If the image holds nothing for this device, or the device is out of memory.
    pub fn load(device: &Arc<Device>, image: &'static [u8]) -> Result<Arc<Self>> {
        device.bind()?;
        // SAFETY: the image lives as long as the process, and its header contains its length.
        let module =
            unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(device.failed("loading kernels"))?;
        Ok(Arc::new(Self { device: Arc::clone(device), module, allowed: Mutex::default() }))
    }

    /// The device that the kernels are loaded onto.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the kernel with this name.
    ///
    /// # Errors
    /// If the module has no kernel with this name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        self.device.bind()?;
        let text = CString::new(name).map_err(Error::invalid)?;
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.module, text) }
            .map_err(self.device.failed("finding a kernel"))?;
        // SAFETY: the function belongs to a loaded module.
        let bytes = unsafe {
            result::function::get_function_attribute(function, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        };
        let bytes = bytes.map_err(self.device.failed("asking for its scratchpad memory"))?;
        let static_scratchpad = u64::try_from(bytes).unwrap_or(0);
        Ok(Function { module: Arc::clone(self), name: name.into(), function, static_scratchpad })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: loaded by `load`, and no function outlives the module. It fails if the device is lost, which also loses
            // the module.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

/// The number of blocks, the threads of each block, and the scratchpad memory of each block in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of the grid.
    pub blocks: u32,
    /// Threads of a block, a multiple of 32.
    pub threads: u32,
    /// Bytes of dynamic scratchpad memory of a block.
    pub scratchpad: u64,
}

/// The parameters of a launch, each with its own type.
#[derive(Debug, Default)]
pub struct Arguments<'a> {
    pointers: Vec<*mut c_void>,
    values: std::marker::PhantomData<&'a ()>,
}

impl<'a> Arguments<'a> {
    /// Appends the next parameter. Its type must match the type of the kernel's parameter in C.
    #[must_use]
    pub fn with<T: Copy>(mut self, value: &'a T) -> Self {
        self.pointers.push(std::ptr::from_ref(value).cast_mut().cast());
        self
    }
}

/// A kernel.
#[derive(Debug, Clone)]
pub struct Function {
    module: Arc<Module>,
    name: Arc<str>,
    function: CUfunction,
    static_scratchpad: u64,
}

// SAFETY: a function is a handle that the driver lets any thread use.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// The device it runs on.
    pub fn device(&self) -> &Arc<Device> {
        self.module.device()
    }

    /// Allows blocks of this kernel to request up to `bytes` bytes of scratchpad memory.
    ///
    /// # Errors
    /// If that is, with the static scratchpad memory, more than the device allows.
    fn allow_scratchpad(&self, bytes: u64) -> Result<()> {
        let available = self.device().properties().scratchpad_per_block;
        let needed = bytes.saturating_add(self.static_scratchpad);
        if needed > available {
            return Err(Error::TooSmall { what: "a kernel", needed, of: "scratchpad memory a block", available });
        }
        if needed <= SCRATCHPAD_FOR_ALL {
            return Ok(());
        }
        let mut allowed = self.module.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = allowed.entry(self.function as usize).or_default();
        if *allowed >= bytes {
            return Ok(());
        }
        self.device().bind()?;
        let value = i32::try_from(bytes).map_err(Error::invalid)?;
        // SAFETY: the function belongs to a loaded module.
        unsafe {
            result::function::set_function_attribute(
                self.function,
                Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                value,
            )
        }
        .map_err(self.device().failed("reserving scratchpad memory"))?;
        *allowed = bytes;
        Ok(())
    }

    /// Bytes of scratchpad memory that a block has in addition to what the launch requests. The sum must not exceed the
    /// device's limit per block.
    pub fn static_scratchpad(&self) -> u64 {
        self.static_scratchpad
    }

    /// The number of blocks that a multiprocessor holds at the same time, as limited by the kernel's registers, its threads and
    /// its scratchpad memory. At least 1.
    ///
    /// # Errors
    /// If a block takes more scratchpad memory than the device allows, or the device is lost.
    pub fn resident_blocks(&self, threads: u32, scratchpad: u64) -> Result<u32> {
        self.allow_scratchpad(scratchpad)?;
        self.device().bind()?;
        let threads = i32::try_from(threads).map_err(Error::invalid)?;
        let scratchpad = usize::try_from(scratchpad).map_err(Error::invalid)?;
        // SAFETY: the function belongs to a loaded module.
        let blocks =
            unsafe { result::occupancy::max_active_block_per_multiprocessor(self.function, threads, scratchpad) };
        let blocks = blocks.map_err(self.device().failed("asking how many blocks fit a multiprocessor"))?;
        Ok(u32::try_from(blocks).unwrap_or(0).max(1))
    }

    /// Queues the kernel on the stream. The parameters are read before this returns, but the memory they point to is not.
    ///
    /// # Errors
    /// If the device cannot run this shape, or the device is lost. The error of a kernel that fails while it runs is returned
    /// by the call that waits for the stream.
    ///
    /// # Safety
    /// The arguments must have the types of the kernel's parameters. All memory reachable from them must be valid for the
    /// kernel's accesses, and must not be used otherwise, until the stream has run the kernel.
    pub unsafe fn launch(&self, stream: &Stream, shape: LaunchShape, mut arguments: Arguments<'_>) -> Result<()> {
        if shape.blocks == 0 {
            return Ok(());
        }
        let scratchpad = u32::try_from(shape.scratchpad).map_err(Error::invalid)?;
        self.allow_scratchpad(shape.scratchpad)?;
        self.device().bind()?;
        let (grid, block) = ((shape.blocks, 1, 1), (shape.threads, 1, 1));
        stream.ask(&self.name, None, |stream| {
            // SAFETY: the function belongs to a loaded module. The caller guarantees the arguments.
            unsafe { result::launch_kernel(self.function, grid, block, scratchpad, stream, &mut arguments.pointers) }
                .map_err(self.device().failed("launching a kernel"))
        })
    }
}
