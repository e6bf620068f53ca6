//! Messages of GPU memory.

use std::ops::Range;

use arrow::buffer::Buffer;
use bytes::Bytes;
use overspill_machine::transfer::PooledBuffer;

use super::{Gpu, GpuPath};
use crate::all_to_all::ExchangeMetrics;
use crate::error::{Error, Result};
use crate::rank::Rank;
use crate::transport::{Arrival, Endpoint, LentBuffer, Message};

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

/// A message with a part of GPU memory: the memory itself if the path is direct and the transport takes it, else a copy in pinned memory, which
/// this waits for.
///
/// # Errors
/// If pinned memory does not suffice, or the copy fails.
pub fn message(
    gpu: &Gpu<'_>,
    endpoint: &Endpoint,
    column: &LentBuffer,
    range: Range<u64>,
    metrics: &ExchangeMetrics,
) -> Result<Message> {
    let is_direct = gpu.path == GpuPath::Direct && endpoint.takes_memory_of(gpu.stream.device());
    metrics.sent_from_gpu(is_direct, range.end - range.start);
    if is_direct {
        return Ok(column.part(range)?.into());
    }
    let bytes = (range.end - range.start) as usize;
    let mut memory = gpu.pool.take(bytes)?;
    column.buffer().read_at(gpu.stream, range.start, &mut memory.as_mut_slice::<u8>()?[..bytes])?;
    Ok(Buffer::from(Bytes::from_owner(Pinned { memory, bytes })).into())
}

/// Brings what has arrived from a rank to its place, `expected` bytes, and waits until it is there.
///
/// # Errors
/// If it has another size, or a copy fails.
pub fn settle(gpu: &Gpu<'_>, arrival: Arrival, expected: u64, rank: Rank, metrics: &ExchangeMetrics) -> Result<()> {
    let bytes = match &arrival {
        Arrival::Placed(bytes) => *bytes,
        Arrival::Message(message, _) => message.bytes(),
    };
    if bytes != expected {
        let what = format!("a column of {bytes} bytes in place of {expected}");
        return Err(Error::Unexpected { rank, what });
    }
    let is_direct = match arrival {
        Arrival::Placed(_) => true,
        Arrival::Message(Message::Device(part), mut place) => {
            place.copy(gpu.stream, part.buffer(), part.range())?;
            true
        }
        Arrival::Message(Message::Host(bytes), mut place) => {
            place.write(gpu.stream, &bytes)?;
            false
        }
    };
    metrics.received_on_gpu(is_direct, bytes);
    Ok(())
}
