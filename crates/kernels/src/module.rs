//! The kernels on a device.

use std::sync::Arc;

use overspill_machine::driver::{Arguments, Device, Function, LaunchShape, Module, Stream};
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::{Error, Result};

use crate::codec::{ChunkTask, ColumnTask};
use crate::columns::MovedColumnArguments;
use crate::hash_partition::HashPartitionArguments;
use crate::index::IndexArguments;
use crate::join::{HashTableArguments, JoinInput, JoinOutput, JoinTask, LocalJoinArguments};
use crate::partition::PartitionArguments;
use crate::selection::SelectionArguments;
use crate::share::Share;

/// The kernels compiled for compute capability 7.0, 7.5, 8.0, 9.0 and 10.0, and as PTX for later ones. `scripts/build-kernels`
/// builds it.
static FATBIN: &[u8] = include_bytes!("../fatbin/kernels.fatbin");

/// The kernels on a device. Cheap to clone. Each kernel is loaded when the table, join or partitioner that launches it is
/// created, not at the launch, as loading waits for running kernels.
#[derive(Debug, Clone)]
pub struct Kernels {
    module: Arc<Module>,
    share: Share,
}

/// Sizes of the structures that Rust and CUDA C++ both declare, in the order of the kernel `sizes_of_arguments`.
const SIZES: [u64; 12] = [
    size_of::<PartitionArguments>() as u64,
    size_of::<JoinInput>() as u64,
    size_of::<HashTableArguments>() as u64,
    size_of::<JoinOutput>() as u64,
    size_of::<JoinTask>() as u64,
    size_of::<SelectionArguments>() as u64,
    size_of::<IndexArguments>() as u64,
    ChunkTask::BYTES,
    ColumnTask::BYTES,
    size_of::<HashPartitionArguments>() as u64,
    size_of::<MovedColumnArguments>() as u64,
    size_of::<LocalJoinArguments>() as u64,
];

impl Kernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// If the kernels were not compiled for the device's generation, or the device is out of memory.
    pub fn load(device: &Arc<Device>) -> Result<Self> {
        let kernels = Self { module: Module::load(device, FATBIN)?, share: Share::all(device) };
        kernels.check_sizes()?;
        Ok(kernels)
    }

    /// Returns the same kernels for partitioners, tables and joins whose launches occupy at most `multiprocessors`
    /// multiprocessors. Kernels of two streams that are confined to half of them each run side by side.
    ///
    /// # Errors
    /// If `multiprocessors` is 0 or more than the device has.
    pub fn confined_to(&self, multiprocessors: u32) -> Result<Self> {
        Ok(Self { module: Arc::clone(&self.module), share: Share::of(self.device(), multiprocessors)? })
    }

    pub(crate) fn share(&self) -> Share {
        self.share
    }

    /// The device that the kernels run on.
    pub fn device(&self) -> &Arc<Device> {
        self.module.device()
    }

    pub(crate) fn function(&self, name: &str) -> Result<Function> {
        self.module.function(name)
    }

    /// Checks the sizes of the shared structures. A kernel with another layout would read parameters that are not there.
    fn check_sizes(&self) -> Result<()> {
        let stream = Stream::new(self.device())?;
        let sizes = DeviceBuffer::new(self.device(), size_of_val(&SIZES) as u64)?;
        let address = sizes.view().address();
        let function = self.function("sizes_of_arguments")?;
        // SAFETY: the kernel writes twelve 8-byte numbers, and the buffer is read after the stream is done.
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
