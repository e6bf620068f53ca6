//! Pool of CPU memory that kernels read and write.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::method::{Source, SourceMemory, TransferMethod};
use crate::driver::Device;
use crate::memory::{HUGE, HostBuffer, PageSize, Plain, Readable, UnifiedBuffer, View};
use crate::{Error, Result};

/// Minimum buffer size in bytes. Smaller requests are rounded up to it.
const SMALLEST: usize = 64 << 10;

/// Lends CPU memory that kernels of a device can access: pinned memory, or pageable memory if the link is coherent.
#[derive(Debug, Clone)]
pub struct HostPool {
    device: Arc<Device>,
    kept: Arc<Kept>,
}

/// Pinned memory kept for reuse, because registering memory takes longer than copying it. It counts against the device's
/// budget.
#[derive(Debug)]
struct Kept {
    device: Arc<Device>,
    buffers: Mutex<Vec<HostBuffer>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let buffers = self.buffers.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.device.pinned_budget().take(buffers.iter().map(HostBuffer::bytes).sum());
    }
}

/// CPU memory with unspecified contents. Dropping it returns it to its pool; the device must have finished with it by then.
#[derive(Debug)]
pub struct PooledBuffer {
    pool: HostPool,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Host(HostBuffer),
    Unified(UnifiedBuffer),
    /// Only while the buffer is being dropped.
    Gone,
}

impl HostPool {
    /// A pool of memory for kernels of a device, in which nothing is kept yet.
    pub fn new(device: &Arc<Device>) -> Self {
        let kept = Kept { device: Arc::clone(device), buffers: Mutex::default() };
        Self { device: Arc::clone(device), kept: Arc::new(kept) }
    }

    /// Keeps at most `most` bytes of pinned memory for reuse, with what the device keeps of mapped pages.
    pub fn keep(&self, most: usize) {
        self.device.pinned_budget().set(most);
        let surplus = self.surplus(&mut self.kept());
        release(surplus);
    }

    fn kept(&self) -> MutexGuard<'_, Vec<HostBuffer>> {
        self.kept.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The allocated size of a buffer for `bytes` bytes.
    pub fn size_for(bytes: usize) -> usize {
        // Sizes that are powers of two are reused more often, but would waste too much memory for large buffers.
        const STEP: usize = 4 << 20;
        if bytes <= STEP { bytes.max(SMALLEST).next_power_of_two() } else { bytes.next_multiple_of(STEP) }
    }

    /// Returns a buffer of at least `bytes` bytes that kernels read and write.
    ///
    /// # Errors
    /// If the system or the driver cannot provide the memory.
    pub fn take(&self, bytes: usize) -> Result<PooledBuffer> {
        let memory = if self.device.properties().coherent { SourceMemory::Pageable } else { SourceMemory::Pinned };
        self.take_of(memory, bytes)
    }

    /// Returns a buffer of at least `bytes` bytes in the memory that a transfer method reads.
    ///
    /// # Errors
    /// As [`HostPool::take`].
    pub fn take_for(&self, method: TransferMethod, bytes: usize) -> Result<PooledBuffer> {
        self.take_of(method.memory(), bytes)
    }

    fn take_of(&self, memory: SourceMemory, bytes: usize) -> Result<PooledBuffer> {
        let bytes = Self::size_for(bytes);
        // A buffer takes whole pages.
        let pages = if bytes < HUGE { PageSize::Small } else { PageSize::Huge };
        let memory = match memory {
            SourceMemory::Pageable => Memory::Host(HostBuffer::new(bytes, pages)?),
            SourceMemory::Unified => Memory::Unified(UnifiedBuffer::new(&self.device, bytes as u64)?),
            SourceMemory::Pinned => {
                let mut kept = self.kept();
                // Take the smallest buffer that is large enough and at most twice the size.
                let fits = kept.iter().enumerate().filter(|(_, buffer)| (bytes..=2 * bytes).contains(&buffer.bytes()));
                let found = fits.min_by_key(|(_, buffer)| buffer.bytes()).map(|(place, _)| place);
                let found = found.map(|place| kept.remove(place));
                drop(kept);
                if let Some(buffer) = &found {
                    self.device.pinned_budget().take(buffer.bytes());
                }
                match found {
                    Some(buffer) => Memory::Host(buffer),
                    None => Memory::Host(HostBuffer::pinned(&self.device, bytes, pages)?),
                }
            }
        };
        Ok(PooledBuffer { pool: self.clone(), memory })
    }

    fn take_back(&self, buffer: HostBuffer) {
        let surplus = {
            let mut kept = self.kept();
            self.device.pinned_budget().keep(buffer.bytes());
            kept.push(buffer);
            self.surplus(&mut kept)
        };
        release(surplus);
    }

    /// Takes out the buffers that are more than may be kept, those used longest ago first: the others are more likely to be
    /// reused.
    fn surplus(&self, kept: &mut Vec<HostBuffer>) -> Vec<HostBuffer> {
        let budget = self.device.pinned_budget();
        let is_surplus = |buffer: &&HostBuffer| {
            let exceeds = budget.is_exceeded();
            budget.take(if exceeds { buffer.bytes() } else { 0 });
            exceeds
        };
        let count = kept.iter().take_while(is_surplus).count();
        kept.drain(..count).collect()
    }
}

/// Unregisters and frees buffers. It takes milliseconds, so no caller holds the pool's lock meanwhile.
fn release(buffers: Vec<HostBuffer>) {
    buffers.into_iter().for_each(HostBuffer::release_idle);
}

impl PooledBuffer {
    /// The memory as a mutable slice of values.
    ///
    /// # Errors
    /// If the device that must finish first is lost.
    pub fn as_mut_slice<T: Copy + Plain>(&mut self) -> Result<&mut [T]> {
        match &mut self.memory {
            Memory::Host(buffer) => Ok(buffer.as_mut_slice()),
            Memory::Unified(buffer) => buffer.as_mut_slice(),
            Memory::Gone => Ok(&mut []),
        }
    }

    /// The memory as a slice of values. Empty for unified memory, which the CPU may not be allowed to access.
    pub fn as_slice<T: Copy + Plain>(&self) -> &[T] {
        match &self.memory {
            Memory::Host(buffer) => buffer.as_slice(),
            Memory::Unified(_) | Memory::Gone => &[],
        }
    }

    /// A view of the memory for kernels of the pool's device that read it.
    ///
    /// # Errors
    /// If the device does not read such memory.
    pub fn view(&self) -> Result<View<'_>> {
        self.view_from(&self.pool.device)
    }

    /// A view of the memory for kernels of another device that read it.
    ///
    /// # Errors
    /// As [`PooledBuffer::view`].
    pub fn view_from(&self, device: &Device) -> Result<View<'_>> {
        match &self.memory {
            Memory::Host(buffer) => buffer.view(device),
            Memory::Unified(buffer) => Ok(buffer.view()),
            Memory::Gone => Ok(View::empty()),
        }
    }

    /// The memory as the source of a transfer.
    ///
    /// # Errors
    /// Never while it is not dropped.
    pub fn source(&self) -> Result<Source<'_>> {
        match &self.memory {
            Memory::Host(buffer) => Ok(Source::Host(buffer)),
            Memory::Unified(buffer) => Ok(Source::Unified(buffer)),
            Memory::Gone => Err(Error::Invalid("a buffer without memory".to_owned())),
        }
    }
}

impl Readable for PooledBuffer {
    fn readable(&self) -> Result<View<'_>> {
        self.view()
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        if let Memory::Host(buffer) = std::mem::replace(&mut self.memory, Memory::Gone)
            && buffer.is_pinned()
        {
            self.pool.take_back(buffer);
        }
    }
}
