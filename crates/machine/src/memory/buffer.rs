//! Memory of the GPU or of the CPU behind one interface.

use std::sync::Arc;

use crate::driver::{Device, Stream};
use crate::memory::{DeviceBuffer, HostBuffer, PageSize, Plain, View, ViewMut};
use crate::{Error, Result};

/// The memory of a [`Buffer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// In GPU memory.
    Device,
    /// In CPU memory.
    Host {
        /// The requested page size.
        pages: PageSize,
        /// Whether it is registered with the driver.
        pinned: bool,
    },
}

/// Memory with a placement that is chosen at run time.
#[derive(Debug)]
pub enum Buffer {
    /// In GPU memory.
    Device(DeviceBuffer),
    /// In CPU memory.
    Host(HostBuffer),
}

impl Buffer {
    /// Allocates memory with unspecified contents.
    ///
    /// # Errors
    /// If a limit, the device or the system has no room for it.
    pub fn new(device: &Arc<Device>, placement: Placement, bytes: u64) -> Result<Self> {
        match placement {
            Placement::Device => DeviceBuffer::new(device, bytes).map(Self::Device),
            Placement::Host { pages, pinned } => {
                let size = usize::try_from(bytes).map_err(Error::invalid)?;
                if pinned { HostBuffer::pinned(device, size, pages) } else { HostBuffer::new(size, pages) }
                    .map(Self::Host)
            }
        }
    }

    /// A view of the memory for kernels of the device that read it.
    ///
    /// # Errors
    /// If the memory is pageable and the device does not read such memory coherently.
    pub fn view(&self, device: &Device) -> Result<View<'_>> {
        match self {
            Self::Device(buffer) => Ok(buffer.view()),
            Self::Host(buffer) => buffer.view(device),
        }
    }

    /// A view of the memory for kernels of the device that write it.
    ///
    /// # Errors
    /// As [`Buffer::view`].
    pub fn view_mut(&mut self, device: &Device) -> Result<ViewMut<'_>> {
        match self {
            Self::Device(buffer) => Ok(buffer.view_mut()),
            Self::Host(buffer) => buffer.view_mut(device),
        }
    }

    /// Fills the buffer with a byte after the stream's queued work, and waits for it.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn fill(&mut self, stream: &Stream, byte: u8) -> Result<()> {
        match self {
            Self::Device(buffer) => {
                buffer.fill(stream, byte)?;
                stream.synchronize()
            }
            Self::Host(buffer) => {
                stream.synchronize()?;
                buffer.as_mut_slice::<u8>().fill(byte);
                Ok(())
            }
        }
    }

    /// Copies values to the start of the buffer after the stream's queued work, and waits for the copy.
    ///
    /// # Errors
    /// If they do not fit, or the device is lost.
    pub fn write<T: Copy + Plain>(&mut self, stream: &Stream, values: &[T]) -> Result<()> {
        match self {
            Self::Device(buffer) => buffer.write(stream, values),
            Self::Host(buffer) => {
                stream.synchronize()?;
                let bytes = buffer.bytes();
                let room = buffer.as_mut_slice::<T>().get_mut(..values.len());
                let room = room.ok_or_else(|| {
                    Error::Invalid(format!("a copy of {} bytes does not fit a buffer of {bytes}", size_of_val(values)))
                })?;
                room.copy_from_slice(values);
                Ok(())
            }
        }
    }

    /// Returns all values of the buffer after the stream's queued work.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn read<T: Copy + Default + Plain>(&self, stream: &Stream) -> Result<Vec<T>> {
        match self {
            Self::Device(buffer) => {
                let count = usize::try_from(buffer.bytes()).map_err(Error::invalid)? / size_of::<T>();
                buffer.read(stream, count)
            }
            Self::Host(buffer) => {
                stream.synchronize()?;
                Ok(buffer.as_slice().to_vec())
            }
        }
    }
}
