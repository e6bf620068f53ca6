//! Cascaded compression (paper 4, section 4): all layers of all columns in one launch.

mod arguments;
mod compress;
mod decompress;

use overspill_machine::driver::{Arguments, Function, Stream};
use overspill_machine::memory::{DeviceBuffer, Plain};
use overspill_machine::{Error, Result};

pub(crate) use arguments::{ChunkTask, ColumnTask};
pub use compress::{ColumnInput, CompressedColumn, Compressor};
pub use decompress::{ColumnOutput, Decompressed, Decompressor};

use crate::Kernels;
use crate::share::Share;

/// Integers of a chunk. Equals `kChunk`.
const CHUNK: u64 = 4096;

/// Threads of a block. Equals `kCodecThreads`.
const THREADS: u32 = 256;

/// The sizes of integers, in bytes, for which there are kernels.
const WIDTHS: [u64; 4] = [1, 2, 4, 8];

/// The kernels named `NAME_uBITS`, in the order of [`WIDTHS`].
fn of_all_widths(kernels: &Kernels, name: &str) -> Result<[Function; WIDTHS.len()]> {
    let [a, b, c, d] = WIDTHS.map(|width| kernels.function(&format!("{name}_u{}", width * 8)));
    Ok([a?, b?, c?, d?])
}

/// The index in [`WIDTHS`] of integers of `width` bytes.
///
/// # Errors
/// If there are no kernels for them.
fn index_of(width: u64) -> Result<usize> {
    let index = WIDTHS.iter().position(|known| *known == width);
    index.ok_or_else(|| Error::Invalid(format!("integers of {width} bytes are not compressed: 1, 2, 4 or 8 are")))
}

/// Launches a kernel with a block for each task, or as many blocks as the GPU holds at once. Returns the list of tasks in GPU memory.
///
/// # Safety
/// The kernel must take the list of tasks and their number, and what the tasks refer to must be valid for its accesses. That memory and
/// the list must live until the stream has done the work.
unsafe fn launch_tasks<T: Copy + Plain>(
    kernel: &Function,
    share: Share,
    stream: &Stream,
    tasks: &[T],
    scratchpad: u64,
) -> Result<DeviceBuffer> {
    let list = DeviceBuffer::with_values(stream, tasks)?;
    let (address, number) = (list.view().address(), tasks.len() as u64);
    let most = share.blocks(kernel.resident_blocks(THREADS, scratchpad)?);
    let blocks = u32::try_from(number).unwrap_or(u32::MAX).min(most);
    let arguments = Arguments::default().with(&address).with(&number);
    // SAFETY: the list has `number` tasks; the caller promises the rest.
    unsafe { kernel.launch(stream, share.shape(blocks, THREADS, scratchpad), arguments)? };
    Ok(list)
}
