//! The kernels on a device.

use std::sync::Arc;

use overspill_machine::driver::{Arguments, Device, Function, LaunchShape, Module, Stream};
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::{Error, Result};

use crate::join::{HashTableArguments, JoinInput, JoinOutput, JoinTask};
use crate::partition::PartitionArguments;
use crate::selection::SelectionArguments;
use crate::share::Share;

/// Compiled for compute capability 7.5, 8.0, 9.0 and 10.0, and as PTX for those that come. `scripts/build-kernels`
/// makes it.
static FATBIN: &[u8] = include_bytes!("../fatbin/kernels.fatbin");

/// The kernels on a device. Cheap to clone. Each is loaded when the table, join or partitioner that launches it is
/// made, not when it is launched: loading waits for kernels that run.
#[derive(Debug, Clone)]
pub struct Kernels {
    module: Arc<Module>,
    share: Share,
}

/// Structures that Rust and CUDA C++ both describe, in the order of the kernel `sizes_of_arguments`.
const SIZES: [u64; 6] = [
    size_of::<PartitionArguments>() as u64,
    size_of::<JoinInput>() as u64,
    size_of::<HashTableArguments>() as u64,
    size_of::<JoinOutput>() as u64,
    size_of::<JoinTask>() as u64,
    size_of::<SelectionArguments>() as u64,
];

impl Kernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// If the device is of a generation that the kernels were not compiled for, or out of memory.
    pub fn load(device: &Arc<Device>) -> Result<Self> {
        let kernels = Self { module: Module::load(device, FATBIN)?, share: Share::all(device) };
        kernels.check_sizes()?;
        Ok(kernels)
    }

    /// The same kernels, for partitioners, tables and joins whose launches occupy at most so many multiprocessors.
    /// Kernels of two streams that are confined to half of them each run side by side.
    ///
    /// # Errors
    /// If there are fewer multiprocessors, or 0 are asked for.
    pub fn confined_to(&self, multiprocessors: u32) -> Result<Self> {
        Ok(Self { module: Arc::clone(&self.module), share: Share::of(self.device(), multiprocessors)? })
    }

    pub(crate) fn share(&self) -> Share {
        self.share
    }

    /// The device they run on.
    pub fn device(&self) -> &Arc<Device> {
        self.module.device()
    }

    pub(crate) fn function(&self, name: &str) -> Result<Function> {
        self.module.function(name)
    }

    /// A kernel of another layout than the launchers would read parameters that are not there.
    fn check_sizes(&self) -> Result<()> {
        let stream = Stream::new(self.device())?;
        let sizes = DeviceBuffer::new(self.device(), size_of_val(&SIZES) as u64)?;
        let address = sizes.view().address();
        let function = self.function("sizes_of_arguments")?;
        // SAFETY: the kernel writes six numbers of eight bytes, and the buffer is read after the stream is done.
        unsafe {
            function.launch(
                &stream,
                LaunchShape { blocks: 1, threads: 1, scratchpad: 0 },
                Arguments::default().with(&address),
            )
        }?;
        let found: Vec<u64> = sizes.read(&stream, SIZES.len())?;
        if found != SIZES {
            return Err(Error::Invalid(format!(
                "the kernels were built from other sources than the program: {found:?} instead of {SIZES:?}"
            )));
        }
        Ok(())
    }
}
