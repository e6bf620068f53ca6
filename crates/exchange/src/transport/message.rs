//! What a message of a stream is: bytes in CPU memory, or GPU memory.

use std::ops::Range;
use std::sync::Arc;

use arrow::buffer::Buffer;
use futures::channel::oneshot;
use overspill_machine::driver::Stream;
use overspill_machine::memory::{DeviceBuffer, DevicePlace};

use crate::error::{Error, Result};

/// A message as its sender gives it to a wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Bytes in CPU memory.
    Host(Buffer),
    /// GPU memory of the sender.
    Device(DeviceMessage),
}

/// A part of GPU memory that is a message. Clones share the memory, which stays allocated until the last of them is dropped.
#[derive(Debug, Clone)]
pub struct DeviceMessage {
    memory: Arc<Lent>,
    range: Range<u64>,
}

/// GPU memory whose parts are sent. It is complete, and nothing writes it any more.
#[derive(Debug)]
pub struct LentBuffer {
    memory: Arc<Lent>,
    returned: oneshot::Receiver<()>,
}

/// Rust drops fields in their order. So `buffer` is freed before the lender hears of its return.
#[derive(Debug)]
struct Lent {
    buffer: DeviceBuffer,
    /// Dropped with the last part.
    _returning: oneshot::Sender<()>,
}

/// A message as it arrives.
#[derive(Debug)]
pub enum Arrived {
    /// Memory that the receiver copies, if it needs it elsewhere.
    Message(Message),
    /// The bytes of a message that the wire has written to the place that the receiver has for it.
    Placed(u64),
}

/// A message for a place of GPU memory.
#[derive(Debug)]
pub enum Arrival {
    /// It is to be copied to its place.
    Message(Message, DevicePlace),
    /// The wire has written these bytes to its place.
    Placed(u64),
}

impl Message {
    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Host(bytes) => bytes.len() as u64,
            Self::Device(part) => part.bytes(),
        }
    }
}

impl From<Buffer> for Message {
    fn from(bytes: Buffer) -> Self {
        Self::Host(bytes)
    }
}

impl From<DeviceMessage> for Message {
    fn from(part: DeviceMessage) -> Self {
        Self::Device(part)
    }
}

impl Arrived {
    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Message(message) => message.bytes(),
            Self::Placed(bytes) => *bytes,
        }
    }
}

impl LentBuffer {
    /// Lends buffers. It waits for the stream that has written them, so that who gets a part needs not know of the stream.
    ///
    /// # Errors
    /// If the work of the stream fails.
    pub fn lend(stream: &Stream, buffers: Vec<DeviceBuffer>) -> Result<Vec<Self>> {
        stream.synchronize()?;
        let lend = |buffer| {
            let (returning, returned) = oneshot::channel();
            Self { memory: Arc::new(Lent { buffer, _returning: returning }), returned }
        };
        Ok(buffers.into_iter().map(lend).collect())
    }

    /// The memory.
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.memory.buffer
    }

    /// A message of some of its bytes.
    ///
    /// # Errors
    /// If they are outside the memory.
    pub fn part(&self, range: Range<u64>) -> Result<DeviceMessage> {
        let bytes = range.end.checked_sub(range.start).unwrap_or(u64::MAX);
        self.buffer().view().slice(range.start, bytes)?;
        Ok(DeviceMessage { memory: Arc::clone(&self.memory), range })
    }

    /// Waits until all messages of it have been dropped, which who takes them does. The memory is free then.
    pub async fn returned(self) {
        drop(self.memory);
        // Nothing is sent: the other end is dropped.
        let _ = self.returned.await;
    }
}

impl DeviceMessage {
    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The memory that has it.
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.memory.buffer
    }

    /// Where it lies in the memory.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// `bytes` bytes of it from `offset` on.
    ///
    /// # Errors
    /// If it has fewer.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Self> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes());
        let end = end.ok_or_else(|| {
            Error::Invalid(format!("{bytes} bytes from {offset} on of a message of {}", self.bytes()))
        })?;
        let range = self.range.start + offset..self.range.start + end;
        Ok(Self { memory: Arc::clone(&self.memory), range })
    }
}

impl PartialEq for DeviceMessage {
    /// Whether both are the same bytes of the same memory.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory) && self.range == other.range
    }
}

impl Eq for DeviceMessage {}
