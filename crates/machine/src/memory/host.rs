//! CPU memory: mapped by this process, in huge pages where the system gives them, and pinned by registering it.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use cudarc::driver::sys;
use serde::{Deserialize, Serialize};
use tracing::debug_span;

use crate::driver::Device;
use crate::memory::{View, ViewMut};
use crate::{Error, Result};

/// The pages that a buffer asks for. Huge pages are a wish: the system may give small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageSize {
    /// As the system has them, usually 4 KiB.
    Small,
    /// 2 MiB, by transparent huge pages.
    Huge,
}

const SMALL_PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// CPU memory that starts at a page.
#[derive(Debug)]
pub struct HostBuffer {
    start: NonNull<u8>,
    bytes: usize,
    /// What was mapped: `bytes` rounded up to pages.
    mapped: usize,
    /// The device whose driver knows the memory as pinned, and where kernels find it.
    pinned: Option<(Arc<Device>, u64)>,
    /// Whether the driver may know some of it as pinned for ever, as a device was lost before it was told otherwise.
    is_stuck: AtomicBool,
}

// SAFETY: plain memory that the value owns.
unsafe impl Send for HostBuffer {}
// SAFETY: shared references only read it.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Zeroed memory.
    ///
    /// # Errors
    /// If the system does not give it.
    pub fn new(bytes: usize, pages: PageSize) -> Result<Self> {
        let unit = match pages {
            PageSize::Small => SMALL_PAGE,
            PageSize::Huge => HUGE_PAGE,
        };
        let mapped = bytes
            .max(1)
            .checked_next_multiple_of(unit)
            .ok_or_else(|| Error::invalid("a buffer of that size cannot be"))?;
        let failed = |error: std::io::Error| Error::OutOfHostMemory { bytes: bytes as u64, reason: error.to_string() };
        // Huge pages must start at a multiple of their size, which the system does not promise: map more, unmap the rest.
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
        // SAFETY: the parts around the aligned range belong to the mapping just made, and nobody has seen them.
        unsafe {
            if aligned > begin {
                libc::munmap(start, aligned - begin);
            }
            let end = aligned + mapped;
            if begin + room > end {
                libc::munmap(end as *mut c_void, begin + room - end);
            }
            let advice = match pages {
                // Some systems give huge pages to everybody.
                PageSize::Small => libc::MADV_NOHUGEPAGE,
                PageSize::Huge => libc::MADV_HUGEPAGE,
            };
            // A refusal leaves other pages, which work as well.
            libc::madvise(aligned as *mut c_void, mapped, advice);
        }
        let start = NonNull::new(aligned as *mut u8).ok_or_else(|| Error::invalid("memory was mapped at address 0"))?;
        Ok(Self { start, bytes, mapped, pinned: None, is_stuck: AtomicBool::new(false) })
    }

    /// Lets the pages that have not been touched yet come from this NUMA node alone.
    ///
    /// # Errors
    /// If the system has no such node, or does not let this process use it.
    pub fn place_on(&mut self, node: usize) -> Result<()> {
        const BITS: usize = libc::c_ulong::BITS as usize;
        let mut nodes = vec![0 as libc::c_ulong; node / BITS + 1];
        nodes[node / BITS] |= 1 << (node % BITS);
        // SAFETY: the range is the buffer's own mapping, and the set has as many bits as are told; the system reads one fewer.
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

    /// Zeroed memory that the device reads and writes across the link, and copies from by DMA. Registering takes the system a
    /// long time: a few GB a second.
    ///
    /// # Errors
    /// If the system or the driver does not give it.
    pub fn pinned(device: &Arc<Device>, bytes: usize, pages: PageSize) -> Result<Self> {
        let mut buffer = Self::new(bytes, pages)?;
        device.bind()?;
        // SAFETY: the range is mapped, and is unregistered before it is unmapped.
        unsafe { register(device, buffer.start.as_ptr(), buffer.mapped) }?;
        // Set first, so that a failure below unregisters.
        buffer.pinned = Some((Arc::clone(device), 0));
        let address = buffer.registered_address(device)?;
        buffer.pinned = Some((Arc::clone(device), address));
        Ok(buffer)
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is registered with a driver.
    pub fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }

    /// Registers a part of pageable memory with the driver for as long as the returned value lives. `offset` is a multiple of
    /// a page; a whole page at the end is registered even if less of it is asked for.
    ///
    /// # Errors
    /// If the part is not within, does not start at a page, is registered already, or the driver refuses.
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

    /// The memory, for kernels that read it.
    ///
    /// # Errors
    /// If the memory is pageable and the device does not read such memory coherently.
    pub fn view(&self, device: &Device) -> Result<View<'_>> {
        self.device_address(device).map(|address| View::new(address, self.bytes as u64))
    }

    /// The memory, for kernels that write it.
    ///
    /// # Errors
    /// As [`HostBuffer::view`].
    pub fn view_mut(&mut self, device: &Device) -> Result<ViewMut<'_>> {
        self.device_address(device).map(|address| ViewMut::new(address, self.bytes as u64))
    }

    /// Where kernels of a device find memory that is registered.
    fn registered_address(&self, device: &Device) -> Result<u64> {
        device.bind()?;
        let mut address = 0;
        // SAFETY: the place is valid; of what is not registered for mapping the driver says so.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut address, self.start.as_ptr().cast(), 0) }
            .result()
            .map_err(|error| Error::driver("pinning memory", device.ordinal(), error))?;
        Ok(address)
    }

    fn device_address(&self, device: &Device) -> Result<u64> {
        match &self.pinned {
            Some((pinned_by, address)) if pinned_by.ordinal() == device.ordinal() => Ok(*address),
            // It is registered for all devices, and each may find it elsewhere.
            Some(_) => self.registered_address(device),
            None if device.properties().coherent => Ok(self.start.as_ptr() as u64),
            None => Err(Error::Invalid(format!(
                "GPU {} cannot read pageable memory across its link: the memory must be pinned, or copied",
                device.ordinal()
            ))),
        }
    }

    /// The memory as values.
    ///
    /// # Panics
    /// If `T` asks for more alignment than a page.
    pub fn as_slice<T: Copy + Plain>(&self) -> &[T] {
        assert!(align_of::<T>() <= SMALL_PAGE, "pages are aligned to 4096 bytes");
        // SAFETY: the range is mapped, initialised (the system zeroes it), aligned, and every bit pattern is a value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.bytes / size_of::<T>()) }
    }

    /// The memory as values that may be written.
    ///
    /// # Panics
    /// If `T` asks for more alignment than a page.
    pub fn as_mut_slice<T: Copy + Plain>(&mut self) -> &mut [T] {
        assert!(align_of::<T>() <= SMALL_PAGE, "pages are aligned to 4096 bytes");
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.bytes / size_of::<T>()) }
    }

    /// The memory as numbers that several threads write at once.
    pub fn as_atomic_slice<A: AtomicNumber>(&mut self) -> &[A] {
        // SAFETY: the range is mapped, initialised and aligned to pages, every bit pattern is a value of the types that are atomic
        // numbers, and the borrow is exclusive, so that for as long as it lasts nobody sees the memory as anything else.
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
            // The device must be done with it: unregistering alone does not wait. All of this fails once the device is lost.
            let is_idle = device.bind().and_then(|()| device.synchronize()).is_ok();
            // SAFETY: registered by `pinned`, at this address.
            let unregister = || unsafe { sys::cuMemHostUnregister(self.start.as_ptr().cast()) }.result().is_ok();
            let is_unregistered = unregister() && is_idle;
            *self.is_stuck.get_mut() |= !is_unregistered;
        }
        let start = self.start.as_ptr().cast();
        if *self.is_stuck.get_mut() {
            // The pages are given back, but nobody else is given the addresses: what lies there next would be taken for pinned
            // where it is not.
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: the whole of what `new` mapped with this length, which nobody uses any more.
            unsafe { libc::mmap(start, self.mapped, libc::PROT_NONE, flags, -1, 0) };
        } else {
            // SAFETY: mapped by `new` with this length.
            unsafe { libc::munmap(start, self.mapped) };
        }
    }
}

/// # Safety
/// The range is whole pages that are mapped, and is unregistered before they are not.
unsafe fn register(device: &Device, start: *mut u8, bytes: usize) -> Result<()> {
    let _registering = debug_span!("register memory", bytes).entered();
    let flags = sys::CU_MEMHOSTREGISTER_DEVICEMAP | sys::CU_MEMHOSTREGISTER_PORTABLE;
    // SAFETY: as the caller promises.
    unsafe { sys::cuMemHostRegister_v2(start.cast(), bytes, flags) }
        .result()
        .map_err(|error| Error::driver("pinning memory", device.ordinal(), error))
}

/// A part of a buffer that is pinned for a while.
#[derive(Debug)]
pub(crate) struct PinnedPart<'a> {
    device: Arc<Device>,
    buffer: &'a HostBuffer,
    range: &'a [u8],
}

impl PinnedPart<'_> {
    /// The memory, from which copies are made by DMA.
    pub fn range(&self) -> &[u8] {
        self.range
    }
}

impl Drop for PinnedPart<'_> {
    fn drop(&mut self) {
        let start = self.range.as_ptr().cast_mut().cast();
        // SAFETY: registered by `pin_part`, at this address.
        let unregister = || unsafe { sys::cuMemHostUnregister(start) }.result().is_ok();
        if self.device.bind().is_err() || !unregister() {
            self.buffer.is_stuck.store(true, Ordering::Relaxed);
        }
    }
}

pub(super) mod plain {
    pub trait Sealed {}
}

/// Types for which every bit pattern is a value.
pub trait Plain: plain::Sealed {}

macro_rules! plain {
    ($($type:ty),*) => { $( impl plain::Sealed for $type {} impl Plain for $type {} )* };
}
plain!(u8, u16, u32, u64, i8, i16, i32, i64);

impl<T: Plain, const N: usize> plain::Sealed for [T; N] {}
impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Numbers that several threads may write at once, and for which every bit pattern is a value.
pub trait AtomicNumber: plain::Sealed {}

impl plain::Sealed for AtomicU32 {}
impl AtomicNumber for AtomicU32 {}
impl plain::Sealed for AtomicU64 {}
impl AtomicNumber for AtomicU64 {}
