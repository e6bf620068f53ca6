//! Validity as bits, by which kernels read keys, of bytes, which they move with rows.

use overspill_machine::driver::{Arguments, Function, Stream};
use overspill_machine::memory::{DeviceBuffer, View};
use overspill_machine::{Error, Result};

use crate::Kernels;
use crate::share::Share;

/// A multiple of a warp, each of which makes words of 32 bits.
const THREADS: u32 = 256;

/// Packs validity bytes into the bits that a [`KeyColumn`](crate::KeyColumn) has.
#[derive(Debug)]
pub struct ValidityPacker {
    pack: Function,
    share: Share,
}

impl ValidityPacker {
    /// # Errors
    /// If the kernel cannot be loaded.
    pub fn new(kernels: &Kernels) -> Result<Self> {
        Ok(Self { pack: kernels.function("pack_validity")?, share: kernels.share() })
    }

    /// A bit for each of the first `rows` bytes, from the lowest of a word of 4 bytes on, that says whether the byte is not 0. Waits for
    /// completion. `O(n)`.
    ///
    /// # Errors
    /// If there are fewer bytes, there is no memory, or the device fails.
    pub fn run(&self, stream: &Stream, rows: u64, bytes: View<'_>) -> Result<DeviceBuffer> {
        if bytes.bytes() < rows {
            return Err(Error::Invalid(format!("{} bytes say of {rows} rows whether they are valid", bytes.bytes())));
        }
        let mut words = DeviceBuffer::new(stream.device(), rows.div_ceil(32) * 4)?;
        if rows == 0 {
            return Ok(words);
        }
        let most = self.share.blocks(self.pack.resident_blocks(THREADS, 0)?);
        let blocks = u32::try_from(rows.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX).min(most);
        let (from, to) = (bytes.address(), words.view_mut().address());
        let arguments = Arguments::default().with(&from).with(&rows).with(&to);
        // SAFETY: the kernel takes these arguments. It reads so many bytes, which there are, and writes a word for each 32 of them, for which
        // there is room. Both live until the stream is done, which is waited for here, also after an error.
        let packed = unsafe { self.pack.launch(stream, self.share.shape(blocks, THREADS, 0), arguments) };
        stream.finish(packed, || stream.synchronize())?;
        Ok(words)
    }
}
