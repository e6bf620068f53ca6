//! Parts of GPU memory that have an owner each.

use std::ops::Range;
use std::sync::Arc;

use super::{DeviceBuffer, ViewMut};
use crate::driver::{Device, Stream};
use crate::{Error, Result};

/// GPU memory that is divided among several writers, such as the messages that arrive in it.
#[derive(Debug)]
pub struct DividedBuffer {
    memory: Arc<DeviceBuffer>,
    /// Bytes from the start that places have.
    divided: u64,
}

/// A part of a [`DividedBuffer`]. No other place has any of its bytes. The memory stays allocated as long as a place does.
#[derive(Debug)]
pub struct DevicePlace {
    memory: Arc<DeviceBuffer>,
    offset: u64,
    bytes: u64,
}

impl DividedBuffer {
    /// Memory of which no place has any yet. No work that uses it may be queued.
    pub fn new(memory: DeviceBuffer) -> Self {
        Self { memory: Arc::new(memory), divided: 0 }
    }

    /// The next `bytes` bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn take(&mut self, bytes: u64) -> Result<DevicePlace> {
        let left = self.memory.bytes() - self.divided;
        if bytes > left {
            return Err(Error::Invalid(format!("a place of {bytes} bytes in memory of which {left} bytes are left")));
        }
        let place = DevicePlace { memory: Arc::clone(&self.memory), offset: self.divided, bytes };
        self.divided += bytes;
        Ok(place)
    }

    /// The memory, once all places have been dropped.
    ///
    /// # Errors
    /// If one has not.
    pub fn into_whole(self) -> Result<DeviceBuffer> {
        Arc::into_inner(self.memory)
            .ok_or_else(|| Error::Invalid("a part of the memory is still being written".to_owned()))
    }
}

impl DevicePlace {
    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The device that the memory belongs to.
    pub fn device(&self) -> &Arc<Device> {
        self.memory.device()
    }

    /// The first `bytes` bytes, and the others.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn split_at(self, bytes: u64) -> Result<(Self, Self)> {
        let Some(others) = self.bytes.checked_sub(bytes) else { return Err(self.too_small(bytes)) };
        let last = Self { memory: Arc::clone(&self.memory), offset: self.offset + bytes, bytes: others };
        Ok((Self { bytes, ..self }, last))
    }

    /// A view of the place for those who write it.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut::new(self.memory.view().address() + self.offset, self.bytes)
    }

    /// Copies values to the start of the place, and waits for the copy.
    ///
    /// # Errors
    /// If they do not fit, or the copy fails. Then the contents of the place are unspecified.
    pub fn write(&mut self, stream: &Stream, values: &[u8]) -> Result<()> {
        self.check(values.len() as u64)?;
        let queued = self.memory.queue_write(stream, self.offset, values);
        stream.finish(queued, || stream.synchronize())
    }

    /// Copies a range of a buffer to the start of the place, and waits for the copy, as [`DeviceBuffer::copy_at`] does.
    ///
    /// # Errors
    /// As [`DeviceBuffer::copy_at`].
    pub fn copy(&mut self, stream: &Stream, from: &DeviceBuffer, range: Range<u64>) -> Result<()> {
        self.check(range.end.saturating_sub(range.start))?;
        let queued = self.memory.queue_copy(stream, self.offset, from, range);
        stream.finish(queued, || stream.synchronize())
    }

    fn check(&self, bytes: u64) -> Result<()> {
        if bytes > self.bytes { Err(self.too_small(bytes)) } else { Ok(()) }
    }

    fn too_small(&self, bytes: u64) -> Error {
        Error::Invalid(format!("{bytes} bytes do not fit a place of {}", self.bytes))
    }
}
