//! Cascaded compression (paper 4, section 4): all layers of all columns in one launch.

mod arguments;
mod compress;
mod decompress;

use overspill_machine::driver::{Arguments, Function, Stream};
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

/// Places of an array of a chunk in scratchpad memory. Equals `kPlaces`.
const PLACES: u64 = CHUNK + THREADS as u64;

/// What a device made, and how long it took.
#[derive(Debug)]
pub struct Timed<T> {
    /// What it made.
    pub made: T,
    /// Seconds in which kernels ran. Memory was there before, and so were lists of what there is to do.
    pub seconds: f64,
}

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

/// Queues kernels, then reads what they have found, which waits for them.
///
/// # Errors
/// If one of both fails. What has been queued is waited for nevertheless.
fn timed<T>(stream: &Stream, queue: impl FnOnce() -> Result<()>, read: impl FnOnce() -> Result<T>) -> Result<Timed<T>> {
    let before = stream.record()?;
    let mut after = None;
    let queued = queue().and_then(|()| stream.record()).map(|event| after = Some(event));
    let made = stream.finish(queued, read)?;
    let seconds = after.map_or(Ok(0.0), |after| before.seconds_until(&after))?;
    Ok(Timed { made, seconds })
}

/// Launches a kernel with a block for each of `number` pieces of work, or as many blocks as the GPU holds at once.
///
/// # Safety
/// The kernel must take the arguments, and what they refer to must be valid for its accesses and live until the stream has done the work.
unsafe fn launch(
    kernel: &Function,
    share: Share,
    stream: &Stream,
    number: u64,
    scratchpad: u64,
    arguments: Arguments<'_>,
) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    let most = share.blocks(kernel.resident_blocks(THREADS, scratchpad)?);
    let blocks = u32::try_from(number).unwrap_or(u32::MAX).min(most);
    // SAFETY: the caller promises it.
    unsafe { kernel.launch(stream, share.shape(blocks, THREADS, scratchpad), arguments) }
}
