//! Arrays for random reads.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::host::{AtomicNumber, HostBuffer, PageSize, Plain};
use crate::error::Result;

/// Minimum bytes of an array in huge pages: random reads of small pages miss the TLB at every access. Smaller arrays come from
/// the allocator, which reuses the pages of earlier ones: mapping and zeroing new pages for each partition that is read back
/// cost a tenth of the time of a spilling join.
pub const HUGE: usize = 16 << 20;

/// An array with a fixed length.
#[derive(Debug)]
pub struct PageVec<T> {
    memory: Memory<T>,
    length: usize,
}

#[derive(Debug)]
enum Memory<T> {
    Heap(Vec<T>),
    Mapped(HostBuffer),
}

impl<T: Plain + Copy + Default> PageVec<T> {
    /// Allocates `length` zeros. The system zeroes the pages of large arrays when they are first touched, in the thread that
    /// fills them.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub fn zeroed(length: usize) -> Result<Self> {
        let bytes = length.saturating_mul(size_of::<T>());
        let memory = if bytes < HUGE {
            Memory::Heap(vec![T::default(); length])
        } else {
            Memory::Mapped(HostBuffer::new(bytes, PageSize::Huge)?)
        };
        Ok(Self { memory, length })
    }

    /// The bytes of the values.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.memory {
            // SAFETY: every value is initialised, and any byte is a valid `u8`.
            Memory::Heap(values) => unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), self.bytes()) },
            Memory::Mapped(buffer) => &buffer.as_slice()[..self.bytes()],
        }
    }

    /// Bytes of the array.
    pub fn bytes(&self) -> usize {
        self.length * size_of::<T>()
    }
}

/// Numbers that several threads write concurrently.
pub trait SharedNumber: Plain + Copy + Default + Send {
    /// The atomic type of the number, used while threads write.
    type Atomic: AtomicNumber + From<Self> + Sync;
    /// Writes the number.
    fn store(self, place: &Self::Atomic);
    /// The number that has been written.
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
    /// Allocates `length` numbers, lets `write` fill them from several threads, in any order, and also returns its result.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub fn written<R>(length: usize, write: impl FnOnce(&[T::Atomic]) -> R) -> Result<(Self, R)> {
        if length * size_of::<T>() < HUGE {
            let numbers: Vec<T::Atomic> = (0..length).map(|_| T::default().into()).collect();
            let result = write(&numbers);
            let numbers = numbers.into_iter().map(T::of).collect();
            return Ok((Self { memory: Memory::Heap(numbers), length }, result));
        }
        let mut buffer = HostBuffer::new(length * size_of::<T>(), PageSize::Huge)?;
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
