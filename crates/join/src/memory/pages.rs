//! Arrays that are read at random.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arrow::buffer::Buffer;
use arrow::datatypes::ArrowNativeType;
use bytes::Bytes;
use overspill_machine::memory::{AtomicNumber, HostBuffer, PageSize, Plain};

use crate::error::{JoinError, Result};

/// From so many bytes on, an array is mapped in huge pages: reading at random from small ones misses the TLB at every
/// access. Smaller arrays are better taken from the allocator, which has the pages of those before: mapping and zeroing
/// new ones for each partition that is read back cost a tenth of the time of a join that spills.
pub(crate) const HUGE: usize = 16 << 20;

/// An array of a length that is set when it is made.
#[derive(Debug)]
pub(crate) struct PageVec<T> {
    memory: Memory<T>,
    length: usize,
}

#[derive(Debug)]
enum Memory<T> {
    Heap(Vec<T>),
    Mapped(HostBuffer),
}

impl<T: Plain + Copy + Default> PageVec<T> {
    /// So many zeros. What is large is zeroed by the system, when it is touched, so that whoever fills it does it.
    ///
    /// # Errors
    /// If the system does not give the memory.
    pub(crate) fn zeroed(length: usize) -> Result<Self> {
        let bytes = length.saturating_mul(size_of::<T>());
        let memory = if bytes < HUGE {
            Memory::Heap(vec![T::default(); length])
        } else {
            Memory::Mapped(HostBuffer::new(bytes, PageSize::Huge).map_err(JoinError::host)?)
        };
        Ok(Self { memory, length })
    }

    /// The bytes it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.length * size_of::<T>()
    }
}

/// Numbers that several threads write at once.
pub(crate) trait SharedNumber: Plain + Copy + Default + Send {
    /// The same, as it is while they do.
    type Atomic: AtomicNumber + From<Self> + Sync;
    /// Writes it.
    fn store(self, place: &Self::Atomic);
    /// What has been written.
    fn of(written: Self::Atomic) -> Self;
}

impl SharedNumber for u32 {
    type Atomic = AtomicU32;
    #[inline(always)]
    fn store(self, place: &AtomicU32) {
        place.store(self, Ordering::Relaxed);
    }
    fn of(written: AtomicU32) -> Self {
        written.into_inner()
    }
}

impl SharedNumber for u64 {
    type Atomic = AtomicU64;
    #[inline(always)]
    fn store(self, place: &AtomicU64) {
        place.store(self, Ordering::Relaxed);
    }
    fn of(written: AtomicU64) -> Self {
        written.into_inner()
    }
}

impl<T: SharedNumber> PageVec<T> {
    /// So many numbers that several threads write at once, in any places, and what `write` returns.
    ///
    /// # Errors
    /// If the system does not give the memory.
    pub(crate) fn written<R>(length: usize, write: impl FnOnce(&[T::Atomic]) -> R) -> Result<(Self, R)> {
        if length * size_of::<T>() < HUGE {
            let numbers: Vec<T::Atomic> = (0..length).map(|_| T::default().into()).collect();
            let result = write(&numbers);
            let numbers = numbers.into_iter().map(T::of).collect();
            return Ok((Self { memory: Memory::Heap(numbers), length }, result));
        }
        let mut buffer = HostBuffer::new(length * size_of::<T>(), PageSize::Huge).map_err(JoinError::host)?;
        let result = write(buffer.as_atomic_slice());
        Ok((Self { memory: Memory::Mapped(buffer), length }, result))
    }
}

impl<T: Plain + Copy> Deref for PageVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.memory {
            Memory::Heap(values) => values,
            Memory::Mapped(buffer) => &buffer.as_slice()[..self.length],
        }
    }
}

impl<T: Plain + Copy> DerefMut for PageVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.memory {
            Memory::Heap(values) => values,
            Memory::Mapped(buffer) => &mut buffer.as_mut_slice()[..self.length],
        }
    }
}

impl<T: Plain + ArrowNativeType> PageVec<T> {
    /// The values as a buffer of Arrow's.
    pub(crate) fn into_buffer(self) -> Buffer {
        match self.memory {
            Memory::Heap(values) => Buffer::from_vec(values),
            Memory::Mapped(buffer) => {
                let bytes = self.length * size_of::<T>();
                Buffer::from(Bytes::from_owner(Mapped(buffer))).slice_with_length(0, bytes)
            }
        }
    }
}

/// Mapped memory as an owner of bytes.
struct Mapped(HostBuffer);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}
