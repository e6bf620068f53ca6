//! Modules of kernels, and launches.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{CUfunction, CUfunction_attribute_enum as Attribute, CUmodule};

use crate::driver::{Device, Stream};
use crate::{Error, Result};

/// Scratchpad memory that every block may ask for without being allowed to.
const SCRATCHPAD_FOR_ALL: u64 = 48 << 10;

/// Kernels, loaded onto a device.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    module: CUmodule,
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
        // SAFETY: the image lives as long as the process, and tells its own length.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .map_err(|error| Error::driver("loading kernels", device.ordinal(), error))?;
        Ok(Arc::new(Self { device: Arc::clone(device), module }))
    }

    /// The device they are loaded onto.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// A kernel by its name.
    ///
    /// # Errors
    /// If the module has none of this name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        self.device.bind()?;
        let text = CString::new(name).map_err(Error::invalid)?;
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.module, text) }
            .map_err(|error| Error::driver("finding a kernel", self.device.ordinal(), error))?;
        Ok(Function { module: Arc::clone(self), name: name.into(), function })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: loaded by `load`, and no function outlives the module. It fails if the device is lost, when all is lost.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

/// How many blocks of how many threads, and the scratchpad memory of each block in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks of the grid.
    pub blocks: u32,
    /// Threads of a block, a multiple of 32.
    pub threads: u32,
    /// Bytes of dynamic scratchpad memory of a block.
    pub scratchpad: u64,
}

/// The parameters of a launch, each by its own type.
#[derive(Debug, Default)]
pub struct Arguments<'a> {
    pointers: Vec<*mut c_void>,
    values: std::marker::PhantomData<&'a ()>,
}

impl<'a> Arguments<'a> {
    /// The next parameter. Its type must be that of the kernel's parameter, as C has it.
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

    /// Lets blocks of this kernel ask for up to `bytes` of scratchpad memory.
    ///
    /// # Errors
    /// If that is more than the device allows.
    pub fn allow_scratchpad(&self, bytes: u64) -> Result<()> {
        let available = self.device().properties().scratchpad_per_block;
        if bytes > available {
            return Err(Error::TooSmall {
                what: "a kernel",
                needed: bytes,
                of: "scratchpad memory a block",
                available,
            });
        }
        if bytes <= SCRATCHPAD_FOR_ALL {
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
        .map_err(|error| Error::driver("reserving scratchpad memory", self.device().ordinal(), error))
    }

    /// Bytes of scratchpad memory that a block has besides what it asks for when it is launched; both must fit what the device
    /// allows a block.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn static_scratchpad(&self) -> Result<u64> {
        self.device().bind()?;
        // SAFETY: the function belongs to a loaded module.
        let bytes = unsafe {
            result::function::get_function_attribute(self.function, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        };
        let bytes =
            bytes.map_err(|error| Error::driver("asking for its scratchpad memory", self.device().ordinal(), error))?;
        Ok(u64::try_from(bytes).unwrap_or(0))
    }

    /// How many blocks of this shape run at once on one multiprocessor.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn blocks_per_multiprocessor(&self, threads: u32, scratchpad: u64) -> Result<u32> {
        self.device().bind()?;
        let scratchpad = usize::try_from(scratchpad).map_err(Error::invalid)?;
        let threads = i32::try_from(threads).map_err(Error::invalid)?;
        // SAFETY: the function belongs to a loaded module.
        let blocks =
            unsafe { result::occupancy::max_active_block_per_multiprocessor(self.function, threads, scratchpad) }
                .map_err(|error| Error::driver("asking for its occupancy", self.device().ordinal(), error))?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Asks the stream to run the kernel. The parameters are read before this returns, what they point to is not.
    ///
    /// # Errors
    /// If the shape is not one that the device runs, or the device is lost. A kernel that fails while it runs is an error of
    /// whoever waits for the stream.
    ///
    /// # Safety
    /// The arguments must have the types of the kernel's parameters, and all memory they lead to must be valid for what the
    /// kernel does, and not be used otherwise, until the stream has done it.
    pub unsafe fn launch(&self, stream: &Stream, shape: LaunchShape, mut arguments: Arguments<'_>) -> Result<()> {
        if shape.blocks == 0 {
            return Ok(());
        }
        let scratchpad = u32::try_from(shape.scratchpad).map_err(Error::invalid)?;
        self.allow_scratchpad(shape.scratchpad)?;
        self.device().bind()?;
        let (grid, block) = ((shape.blocks, 1, 1), (shape.threads, 1, 1));
        stream.ask(&self.name, None, |stream| {
            // SAFETY: the function belongs to a loaded module, the arguments are the caller's promise.
            unsafe { result::launch_kernel(self.function, grid, block, scratchpad, stream, &mut arguments.pointers) }
                .map_err(|error| Error::driver("launching a kernel", self.device().ordinal(), error))
        })
    }
}
