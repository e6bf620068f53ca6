//! Messages of GPU memory.

use arrow::buffer::Buffer;
use bytes::Bytes;
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;
use overspill_machine::transfer::{HostPool, PooledBuffer};

use crate::error::Result;

/// Pinned memory with a message at its start. It returns to its pool when the last who holds the message drops it.
struct Pinned {
    memory: PooledBuffer,
    bytes: usize,
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        &self.memory.as_slice()[..self.bytes]
    }
}

/// A message with a part of GPU memory, copied through pinned memory, and waits for the copy.
///
/// # Errors
/// If memory does not suffice, or the copy fails.
pub fn from_gpu(pool: &HostPool, stream: &Stream, column: &DeviceBuffer, offset: u64, bytes: usize) -> Result<Buffer> {
    let mut memory = pool.take(bytes)?;
    column.read_at(stream, offset, &mut memory.as_mut_slice::<u8>()?[..bytes])?;
    Ok(Buffer::from(Bytes::from_owner(Pinned { memory, bytes })))
}

/// Copies a message to its place in GPU memory, and waits for the copy.
///
/// # Errors
/// If the copy fails.
pub fn to_gpu(stream: &Stream, column: &mut DeviceBuffer, offset: u64, message: &Buffer) -> Result<()> {
    Ok(column.write_all(stream, &[(offset, message.as_slice())])?)
}
