//! CPU memory: mapped by this process, in huge pages if the system provides them, and pinned by registering it.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cudarc::driver::sys;
use serde::{Deserialize, Serialize};
use tracing::debug_span;

use crate::driver::Device;
use crate::memory::{View, ViewMut};
use crate::{Error, Result};

/// The page size that a buffer requests. Huge pages are only a hint: the system may provide small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageSize {
    /// The system's default, usually 4 KiB.
    Small,
    /// 2 MiB, by transparent huge pages.
    Huge,
}

impl PageSize {
    /// Bytes of a page.
    pub fn bytes(self) -> usize {
        match self {
            Self::Small => SMALL_PAGE,
            Self::Huge => HUGE_PAGE,
        }
    }
}

const SMALL_PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// CPU memory that starts at a page boundary.
#[derive(Debug)]
pub struct HostBuffer {
    start: NonNull<u8>,
    bytes: usize,
    /// Mapped bytes: `bytes` rounded up to whole pages.
    mapped: usize,
    /// If pinned: the device that the memory was registered with, and its address for kernels.
    pinned: Option<(Arc<Device>, u64)>,
    /// Whether the device is known to have finished with the memory.
    is_idle: bool,
    /// Whether the driver may treat part of the memory as pinned for ever, because a device was lost before it was
    /// unregistered.
    is_stuck: AtomicBool,
}

// SAFETY: plain memory owned by the value.
unsafe impl Send for HostBuffer {}
// SAFETY: shared references only read it.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates zeroed memory.
    ///
    /// # Errors
    /// If the system cannot provide the memory.
    pub fn new(bytes: usize, pages: PageSize) -> Result<Self> {
        let unit = pages.bytes();
        let mapped = bytes
            .max(1)
            .checked_next_multiple_of(unit)
            .ok_or_else(|| Error::invalid("a buffer of that size cannot be"))?;
        let failed = |error: std::io::Error| Error::OutOfHostMemory { bytes: bytes as u64, reason: error.to_string() };
        // Huge pages must start at a multiple of their size, which the system does not guarantee: map more, then unmap the
        // rest.
        let room = mapped + if pages == PageSize::Huge { HUGE_PAGE } else { 0 };
        // SAFETY: a new private mapping at any address.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                room,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(failed(std::io::Error::last_os_error()));
        }
        let begin = start as usize;
        let aligned = begin.next_multiple_of(unit);
        // SAFETY: the parts around the aligned range belong to the mapping just made, and nothing refers to them.
        unsafe {
            if aligned > begin {
                libc::munmap(start, aligned - begin);
            }
            let end = aligned + mapped;
            if begin + room > end {
                libc::munmap(end as *mut c_void, begin + room - end);
            }
            let advice = match pages {
                // Some systems use huge pages by default.
                PageSize::Small => libc::MADV_NOHUGEPAGE,
                PageSize::Huge => libc::MADV_HUGEPAGE,
            };
            // If the system refuses, the pages have another size, which works as well.
            libc::madvise(aligned as *mut c_void, mapped, advice);
        }
        let start = NonNull::new(aligned as *mut u8).ok_or_else(|| Error::invalid("memory was mapped at address 0"))?;
        Ok(Self { start, bytes, mapped, pinned: None, is_idle: false, is_stuck: AtomicBool::new(false) })
    }

    /// Places all pages that have not been touched yet on this NUMA node only.
    ///
    /// # Errors
    /// If the system has no such node, or does not allow this process to use it.
    pub(crate) fn place_on(&mut self, node: usize) -> Result<()> {
        const BITS: usize = libc::c_ulong::BITS as usize;
        let mut nodes = vec![0 as libc::c_ulong; node / BITS + 1];
        nodes[node / BITS] |= 1 << (node % BITS);
        // SAFETY: the range is the buffer's own mapping. The system reads one bit fewer than the number passed, which is the
        // number of bits in the set.
        let refused = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start.as_ptr(),
                self.mapped,
                libc::MPOL_BIND,
                nodes.as_ptr(),
                nodes.len() * BITS + 1,
                0,
            )
        };
        if refused != 0 {
            let reason = std::io::Error::last_os_error();
            return Err(Error::Invalid(format!("the system does not place memory on node {node}: {reason}")));
        }
        Ok(())
    }

    /// Allocates zeroed memory that the device reads and writes across the link, and copies from by DMA. Registering is slow:
    /// the system registers a few GB per second.
    ///
    /// # Errors
    /// If the system or the driver cannot provide the memory.
    pub fn pinned(device: &Arc<Device>, bytes: usize, pages: PageSize) -> Result<Self> {
        let mut buffer = Self::new(bytes, pages)?;
        buffer.touch();
        device.bind()?;
        // SAFETY: the range is mapped, and is unregistered before it is unmapped.
        unsafe { register(device, buffer.start.as_ptr(), buffer.mapped) }?;
        // Set this first, so that a failure below unregisters the memory.
        buffer.pinned = Some((Arc::clone(device), 0));
        let address = buffer.registered_address(device)?;
        buffer.pinned = Some((Arc::clone(device), address));
        Ok(buffer)
    }

    /// Makes the system provide all pages, on several threads: the driver would do so on one, five times as long.
    fn touch(&mut self) {
        const PART: usize = 16 << 20;
        let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(self.mapped.div_ceil(PART));
        let part = self.mapped.div_ceil(threads.max(1)).next_multiple_of(HUGE_PAGE);
        let (start, mapped) = (self.start.as_ptr() as usize, self.mapped);
        let touch = |begin: usize| {
            // SAFETY: the range is part of the buffer's own mapping. Where the system does not know the advice, or has no
            // memory, nothing changes, and the driver does it or says so.
            unsafe {
                libc::madvise((start + begin) as *mut c_void, part.min(mapped - begin), libc::MADV_POPULATE_WRITE)
            };
        };
        std::thread::scope(|scope| {
            for begin in (part..mapped).step_by(part) {
                scope.spawn(move || touch(begin));
            }
            touch(0);
        });
    }

    /// Frees the memory as dropping it does, but does not wait until the device has finished all its work. Code that queues work
    /// must keep the work's memory until the work is done, so no work on this memory is left.
    pub fn release_idle(mut self) {
        self.is_idle = true;
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is registered with a driver.
    pub fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }

    /// Registers a part of pageable memory with the driver until the returned value is dropped. `offset` must be a multiple of
    /// the page size. The last page is registered as a whole even if only part of it is requested.
    ///
    /// # Errors
    /// If the part is outside the buffer, does not start at a page, is registered already, or the driver refuses.
    pub(crate) fn pin_part(&self, device: &Arc<Device>, offset: u64, bytes: u64) -> Result<PinnedPart<'_>> {
        let range = self.range(offset, bytes)?;
        if range.is_empty() || !(range.as_ptr() as usize).is_multiple_of(SMALL_PAGE) {
            return Err(Error::invalid("a part of memory that is pinned starts at a page and is not empty"));
        }
        device.bind()?;
        // SAFETY: the pages lie within the mapping, which is whole pages and outlives the borrow.
        unsafe { register(device, range.as_ptr().cast_mut(), range.len().next_multiple_of(SMALL_PAGE)) }?;
        Ok(PinnedPart { device: Arc::clone(device), buffer: self, range })
    }

    /// A view of the memory for kernels that read it.
    ///
    /// # Errors
    /// If the memory is pageable and the device does not read such memory coherently.
    pub fn view(&self, device: &Device) -> Result<View<'_>> {
        self.device_address(device).map(|address| View::new(address, self.bytes as u64))
    }

    /// A view of the memory for kernels that write it.
    ///
    /// # Errors
    /// As [`HostBuffer::view`].
    pub fn view_mut(&mut self, device: &Device) -> Result<ViewMut<'_>> {
        self.device_address(device).map(|address| ViewMut::new(address, self.bytes as u64))
    }

    /// Returns the address of registered memory for kernels of a device.
    fn registered_address(&self, device: &Device) -> Result<u64> {
        device.bind()?;
        let mut address = 0;
        // SAFETY: the output pointer is valid. The driver returns an error for memory that is not registered for mapping.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.start.as_ptr().cast(), 0) }
            .result()
            .map_err(device.failed("pinning memory"))?;
        Ok(address)
    }

    fn device_address(&self, device: &Device) -> Result<u64> {
        match &self.pinned {
            Some((pinned_by, address)) if pinned_by.ordinal() == device.ordinal() => Ok(*address),
            // The memory is registered for all devices, but its address may differ between devices.
            Some(_) => self.registered_address(device),
            None if device.properties().coherent => Ok(self.start.as_ptr() as u64),
            None => Err(Error::Invalid(format!(
                "GPU {} cannot read pageable memory across its link: the memory must be pinned, or copied",
                device.ordinal()
            ))),
        }
    }

    /// The memory as a slice of values.
    ///
    /// # Panics
    /// If `T` requires more alignment than a page.
    pub fn as_slice<T: Copy + Plain>(&self) -> &[T] {
        assert!(align_of::<T>() <= SMALL_PAGE, "pages are aligned to 4096 bytes");
        // SAFETY: the range is mapped, initialised (the system zeroes it) and aligned, and every bit pattern is a valid value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / size_of::<T>()) }
    }

    /// The memory as a mutable slice of values.
    ///
    /// # Panics
    /// If `T` requires more alignment than a page.
    pub fn as_mut_slice<T: Copy + Plain>(&mut self) -> &mut [T] {
        assert!(align_of::<T>() <= SMALL_PAGE, "pages are aligned to 4096 bytes");
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes / size_of::<T>()) }
    }

    /// The memory as numbers that several threads can write concurrently.
    pub fn as_atomic_slice<A: AtomicNumber>(&mut self) -> &[A] {
        // SAFETY: the range is mapped, initialised and aligned to pages, and every bit pattern is a valid value of the atomic
        // number types. The borrow is exclusive, so nothing accesses the memory as another type while it lasts.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / size_of::<A>()) }
    }

    pub(crate) fn range(&self, offset: u64, bytes: u64) -> Result<&[u8]> {
        let range = usize::try_from(offset).ok().zip(usize::try_from(offset.saturating_add(bytes)).ok());
        range.and_then(|(from, to)| self.as_slice::<u8>().get(from..to)).ok_or_else(|| {
            Error::Invalid(format!("{bytes} bytes from {offset} on do not lie within a buffer of {}", self.bytes))
        })
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Some((device, _)) = &self.pinned {
            // The device must have finished with the memory: unregistering alone does not wait. All of this fails once the
            // device is lost.
            let wait = || if self.is_idle { Ok(()) } else { device.synchronize() };
            let is_idle = device.bind().and_then(|()| wait()).is_ok();
            // SAFETY: registered by `pinned` at this address.
            let unregister = || unsafe { sys::cuMemHostUnregister(self.start.as_ptr().cast()) }.result().is_ok();
            let is_unregistered = unregister() && is_idle;
            *self.is_stuck.get_mut() |= !is_unregistered;
        }
        let start = self.start.as_ptr().cast();
        if *self.is_stuck.get_mut() {
            // Free the pages but keep the addresses reserved: the driver would treat later memory at these addresses as pinned,
            // which it is not.
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: the whole range that `new` mapped with this length, which is no longer used.
            unsafe { libc::mmap(start, self.mapped, libc::PROT_NONE, flags, -1, 0) };
        } else {
            // SAFETY: mapped by `new` with this length.
            unsafe { libc::munmap(start, self.mapped) };
        }
    }
}

/// # Safety
/// The range must be whole mapped pages, and must be unregistered before they are unmapped.
unsafe fn register(device: &Device, start: *mut u8, bytes: usize) -> Result<()> {
    let _registering = debug_span!("register memory", bytes).entered();
    let flags = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
    // SAFETY: guaranteed by the caller.
    unsafe { sys::cuMemHostRegister_v2(start.cast(), bytes, flags) }.result().map_err(device.failed("pinning memory"))
}

/// A part of a buffer that is pinned until this is dropped.
#[derive(Debug)]
pub(crate) struct PinnedPart<'a> {
    device: Arc<Device>,
    buffer: &'a HostBuffer,
    range: &'a [u8],
}

impl PinnedPart<'_> {
    /// The pinned memory, from which DMA can copy.
    pub fn range(&self) -> &[u8] {
        self.range
    }
}

impl Drop for PinnedPart<'_> {
    fn drop(&mut self) {
        let start = self.range.as_ptr().cast_mut().cast();
        // SAFETY: registered by `pin_part` at this address.
        let unregister = || unsafe { sys::cuMemHostUnregister(start) }.result().is_ok();
        if self.device.bind().is_err() || !unregister() {
            self.buffer.is_stuck.store(true, Ordering::Relaxed);
        }
    }
}

pub(super) mod plain {
    pub trait Sealed {}
}

/// Types for which every bit pattern is a valid value.
pub trait Plain: plain::Sealed {}

macro_rules! plain {
    ($($type:ty),*) => { $( impl plain::Sealed for $type {} impl Plain for $type {} )* };
}
plain!(u8, u16, u32, u64, i8, i16, i32, i64);

impl<T: Plain, const N: usize> plain::Sealed for [T; N] {}
impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Numbers that several threads may write concurrently, and for which every bit pattern is a valid value.
pub trait AtomicNumber: plain::Sealed {}

impl plain::Sealed for AtomicU32 {}
impl AtomicNumber for AtomicU32 {}
impl plain::Sealed for AtomicU64 {}
impl AtomicNumber for AtomicU64 {}
