//! GPU memory.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::CUdeviceptr;

use crate::driver::{Device, Stream, Ticket};
use crate::memory::{Plain, Readable, View, ViewMut};
use crate::{Error, Result};

/// The names in timelines of a copy to GPU memory, a copy from it, one within it, one from another GPU, and filling it.
pub(super) const TO_GPU: &str = "copy to GPU";
pub(super) const TO_CPU: &str = "copy to CPU";
const WITHIN: &str = "copy within GPU";
const FROM_PEER: &str = "copy from other GPU";
pub(super) const FILL: &str = "fill";

/// Memory of a device. It is counted against the device's limit and freed when dropped.
///
/// Dropping waits for the device, so that no kernel uses the memory any more, unless the device keeps freed memory
/// ([`Device::keep_freed_memory`]).
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Arc<Device>,
    address: CUdeviceptr,
    bytes: u64,
    /// Allocated bytes.
    capacity: u64,
    /// The operations that this type has queued on the buffer without waiting for them. Kernels are not tracked: the code that
    /// launches them is responsible for their use of the buffer.
    queued: Vec<Ticket>,
}

impl DeviceBuffer {
    /// Allocates memory with unspecified contents, aligned to at least 256 bytes. For zero bytes, nothing is requested from the
    /// driver.
    ///
    /// # Errors
    /// If the limit or the device has no room for it.
    pub fn new(device: &Arc<Device>, bytes: u64) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self { device: Arc::clone(device), address: 0, bytes, capacity: 0, queued: Vec::new() });
        }
        let (address, capacity) = device.allocate(bytes)?;
        Ok(Self { device: Arc::clone(device), address, bytes, capacity, queued: Vec::new() })
    }

    /// Allocates memory that holds a copy of `values`.
    ///
    /// # Errors
    /// As [`DeviceBuffer::new`], or if the copy fails.
    pub fn from_slice<T: Copy + Plain>(stream: &Stream, values: &[T]) -> Result<Self> {
        let mut buffer = Self::new(stream.device(), size_of_val(values) as u64)?;
        buffer.write(stream, values)?;
        Ok(buffer)
    }

    /// Allocates memory that holds a copy of a few values, for work that is queued on the stream later. The driver has read the
    /// values when this returns, so nothing waits.
    ///
    /// # Errors
    /// As [`DeviceBuffer::from_slice`].
    pub fn with_values<T: Copy + Plain>(stream: &Stream, values: &[T]) -> Result<Self> {
        let mut buffer = Self::new(stream.device(), size_of_val(values) as u64)?;
        if values.is_empty() {
            return Ok(buffer);
        }
        // The program's own heap is never pinned, so that the driver copies these values before it returns.
        let values = values.to_vec();
        buffer.device.bind()?;
        let asked = stream.ask(TO_GPU, Some(size_of_val(values.as_slice()) as u64), |stream| {
            // SAFETY: the buffer has just this size, and the driver does not read pageable values later.
            unsafe { result::memcpy_htod_async(buffer.address, &values, stream) }
                .map_err(buffer.device.failed("copying to it"))
        });
        buffer.is_queued(stream);
        asked.map(|()| buffer)
    }

    /// The device that the memory belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A view of the memory for kernels that read it.
    pub fn view(&self) -> View<'_> {
        View::new(self.address, self.bytes)
    }

    /// A view of the memory for kernels that write it.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut::new(self.address, self.bytes)
    }

    /// As [`DeviceBuffer::view_mut`], for work that is queued in turn on one stream.
    ///
    /// # Safety
    /// All work that uses the memory while the view's own work is queued or running must be on that same stream.
    pub unsafe fn view_mut_of_shared(&self) -> ViewMut<'_> {
        ViewMut::new(self.address, self.bytes)
    }

    /// Copies values to the start of the buffer, and waits for the copy.
    ///
    /// # Errors
    /// If they do not fit, or the copy fails.
    pub fn write<T: Copy + Plain>(&mut self, stream: &Stream, values: &[T]) -> Result<()> {
        self.write_all(stream, &[(0, values)])
    }

    /// Copies values to several places of the buffer, each given by its first byte, with one wait for all.
    ///
    /// # Errors
    /// If some do not fit, or a copy fails. Then the contents of the places are unspecified.
    pub fn write_all<T: Copy + Plain>(&mut self, stream: &Stream, places: &[(u64, &[T])]) -> Result<()> {
        if places.iter().all(|(_, values)| values.is_empty()) {
            return Ok(());
        }
        let queued = places.iter().try_for_each(|(offset, values)| self.queue_write(stream, *offset, values));
        stream.synchronize().and(queued)
    }

    /// Queues a copy of values. The caller waits for the stream before it uses the buffer or `values` otherwise.
    pub(super) fn queue_write<T: Copy + Plain>(&self, stream: &Stream, offset: u64, values: &[T]) -> Result<()> {
        self.check(offset.saturating_add(size_of_val(values) as u64))?;
        if values.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        stream.ask(TO_GPU, Some(size_of_val(values) as u64), |stream| {
            // SAFETY: fits, as checked, and the caller waits until the stream is done with both.
            unsafe { result::memcpy_htod_async(self.address + offset, values, stream) }
                .map_err(self.device.failed("copying to it"))
        })
    }

    /// Returns the first `count` values of the buffer, after the stream's queued work.
    ///
    /// # Errors
    /// If the buffer is shorter, or the copy fails.
    pub fn read<T: Copy + Default + Plain>(&self, stream: &Stream, count: usize) -> Result<Vec<T>> {
        let mut values = vec![T::default(); count];
        self.read_into(stream, &mut values)?;
        Ok(values)
    }

    /// Copies the first values of the buffer to `values` after the stream's queued work: by DMA if that memory is pinned.
    ///
    /// # Errors
    /// If the buffer is shorter, or the copy fails.
    pub fn read_into<T: Copy + Plain>(&self, stream: &Stream, values: &mut [T]) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        Self::read_all(stream, &mut [(self, values)])
    }

    /// Copies the first values of several buffers of a device to `values` after the stream's queued work, with one wait for all.
    ///
    /// # Errors
    /// As [`DeviceBuffer::read_into`].
    pub fn read_all<T: Copy + Plain>(stream: &Stream, columns: &mut [(&Self, &mut [T])]) -> Result<()> {
        let queued = columns.iter_mut().try_for_each(|(buffer, values)| buffer.queue_read(stream, 0, values));
        stream.synchronize().and(queued)
    }

    /// Copies values from a place of the buffer, given by its first byte, after the stream's queued work, and waits for the copy.
    ///
    /// # Errors
    /// As [`DeviceBuffer::read_into`].
    pub fn read_at<T: Copy + Plain>(&self, stream: &Stream, offset: u64, values: &mut [T]) -> Result<()> {
        let queued = self.queue_read(stream, offset, values);
        stream.finish(queued, || stream.synchronize())
    }

    /// Queues a copy of values from a place on. The caller waits for the stream before it uses `values` otherwise.
    fn queue_read<T: Copy + Plain>(&self, stream: &Stream, offset: u64, values: &mut [T]) -> Result<()> {
        self.check(offset.saturating_add(size_of_val(values) as u64))?;
        if values.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        stream.ask(TO_CPU, Some(size_of_val(values) as u64), |stream| {
            // SAFETY: fits, as checked, and the caller waits until the stream is done with both.
            unsafe { result::memcpy_dtoh_async(values, self.address + offset, stream) }
                .map_err(self.device.failed("copying from it"))
        })
    }

    /// Fills the buffer with a byte, in stream order.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn fill(&mut self, stream: &Stream, byte: u8) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        let size = usize::try_from(self.bytes).map_err(Error::invalid)?;
        let asked = stream.ask(FILL, Some(self.bytes), |stream| {
            // SAFETY: the whole buffer, which is freed only after the device is done with it.
            unsafe { result::memset_d8_async(self.address, byte, size, stream) }
                .map_err(self.device.failed("filling memory"))
        });
        self.is_queued(stream);
        asked
    }

    /// Queues a copy to the start of the buffer: by DMA if the source is pinned, else through the driver's own memory. In the
    /// latter case the source has been read when this returns.
    ///
    /// # Errors
    /// If the source does not fit, or the device is lost.
    ///
    /// # Safety
    /// Neither range may be written otherwise, nor dropped, until the stream has done the copy.
    pub(crate) unsafe fn copy_from(&mut self, stream: &Stream, source: &[u8]) -> Result<()> {
        self.check(source.len() as u64)?;
        self.device.bind()?;
        let asked = stream.ask(TO_GPU, Some(source.len() as u64), |stream| {
            // SAFETY: the range is checked; the caller guarantees the rest.
            unsafe { result::memcpy_htod_async(self.address, source, stream) }
                .map_err(self.device.failed("copying to it"))
        });
        self.is_queued(stream);
        asked
    }

    /// Copies a range of another buffer to a place of this one, given by its first byte, after the stream's queued work, and waits for the
    /// copy. The stream is one of this buffer's device. The other buffer may be another device's: then the driver moves the bytes from
    /// device to device, through CPU memory if their link has no peer access.
    ///
    /// # Errors
    /// If the range is outside its buffer or does not fit this one, or the copy fails. Then the contents of the place are unspecified.
    pub fn copy_at(&mut self, stream: &Stream, offset: u64, from: &Self, range: Range<u64>) -> Result<()> {
        let queued = self.queue_copy(stream, offset, from, range);
        stream.finish(queued, || stream.synchronize())
    }

    /// Queues such a copy. The caller waits for the stream before it uses either range otherwise.
    pub(super) fn queue_copy(&self, stream: &Stream, offset: u64, from: &Self, range: Range<u64>) -> Result<()> {
        let bytes = range.end.saturating_sub(range.start);
        from.check(range.start.saturating_add(bytes))?;
        self.check(offset.saturating_add(bytes))?;
        if bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        let size = usize::try_from(bytes).map_err(Error::invalid)?;
        let (to, source) = (self.address + offset, from.address + range.start);
        if self.device.ordinal() == from.device.ordinal() {
            return stream.ask(WITHIN, Some(bytes), |stream| {
                // SAFETY: both ranges are checked, and the caller waits until the stream is done with them.
                unsafe { result::memcpy_dtod_async(to, source, size, stream) }
                    .map_err(self.device.failed("copying within it"))
            });
        }
        let [own, other] = [&self.device, &from.device].map(|device| device.context().cu_ctx());
        stream.ask(FROM_PEER, Some(bytes), |stream| {
            // SAFETY: as above, and each context is that of the device that has the memory.
            unsafe { result::memcpy_peer_async(own, to, other, source, size, stream) }
                .map_err(self.device.failed("copying from another GPU"))
        })
    }

    /// Remembers that an operation has been queued.
    fn is_queued(&mut self, stream: &Stream) {
        self.queued.retain(|ticket| !ticket.is_done());
        self.queued.push(stream.ticket());
    }

    fn check(&self, bytes: u64) -> Result<()> {
        if bytes > self.bytes {
            return Err(Error::Invalid(format!("a copy of {bytes} bytes does not fit a buffer of {}", self.bytes)));
        }
        Ok(())
    }
}

impl Readable for DeviceBuffer {
    fn readable(&self) -> Result<View<'_>> {
        Ok(self.view())
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let is_idle = self.queued.iter().all(Ticket::is_done);
            self.device.give_back(self.address, self.capacity, is_idle);
        }
    }
}
