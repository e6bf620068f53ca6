//! Memory that a device keeps for later use, because the driver takes long to provide it: freed memory of its own, and mapped
//! pages of GPU and CPU memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{MutexGuard, PoisonError};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdeviceptr, CUresult};

use crate::driver::Device;
use crate::{Error, Result};

/// Bytes that mapped pages may have beyond what is asked for, and beyond a quarter of it.
const SLACK: usize = 4 << 20;

/// What a device keeps.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Maximum bytes of freed memory to keep; 0 if nothing is kept.
    most: u64,
    bytes: u64,
    /// Sizes and addresses, most recently freed last.
    memory: Vec<(u64, CUdeviceptr)>,
    /// Mapped pages, most recently freed last.
    pages: Vec<MappedPages>,
    /// Bytes of the device's memory that is no longer kept and not yet free.
    leaving: u64,
}

/// Memory that a device keeps no longer. The driver takes milliseconds to free it, so a thread releases the lock first. The bytes
/// count against the limit until they are free.
#[derive(Debug)]
enum Leaving {
    Memory(u64, CUdeviceptr),
    Pages(MappedPages),
}

impl Leaving {
    fn device_bytes(&self) -> u64 {
        match self {
            Self::Memory(bytes, _) => *bytes,
            Self::Pages(pages) => pages.device_bytes(),
        }
    }
}

/// Addresses of this process, and the memory of one device and of the CPU that is mapped to them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MappedPages {
    pub address: CUdeviceptr,
    /// Bytes of addresses.
    pub reserved: usize,
    /// The runs of pages in one memory, from the start of the addresses.
    pub runs: Vec<MappedRun>,
    /// The NUMA node of CPU pages.
    pub node: u32,
    /// Whether any part of the addresses has about the shares of the whole in each memory.
    pub is_even: bool,
}

/// Consecutive pages in one memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappedRun {
    /// The number of the device among those of the range; `None` for CPU memory.
    pub device: Option<usize>,
    pub bytes: usize,
}

/// A budget for CPU memory that stays pinned for a device while nothing uses it. All who keep such memory count it here.
#[derive(Debug, Default)]
pub struct PinnedBudget {
    most: AtomicUsize,
    kept: AtomicUsize,
}

impl PinnedBudget {
    /// Allows `most` bytes to be kept. It frees nothing: owners of kept memory free theirs while [`PinnedBudget::is_exceeded`].
    pub fn set(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Whether more is kept than is allowed.
    pub fn is_exceeded(&self) -> bool {
        self.kept.load(Ordering::Relaxed) > self.most.load(Ordering::Relaxed)
    }

    /// Counts memory that is kept from now on.
    pub fn keep(&self, bytes: usize) {
        self.kept.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts memory that is used again, or freed.
    pub fn take(&self, bytes: usize) {
        self.kept.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl MappedPages {
    fn bytes(&self, is_counted: impl Fn(Option<usize>) -> bool) -> usize {
        self.runs.iter().filter(|run| is_counted(run.device)).map(|run| run.bytes).sum()
    }

    /// Bytes of CPU memory.
    fn host_bytes(&self) -> usize {
        self.bytes(|device| device.is_none())
    }

    /// Bytes of the device's memory.
    fn device_bytes(&self) -> u64 {
        self.bytes(|device| device.is_some()) as u64
    }

    /// Unmaps the pages, which frees them, and gives the addresses back.
    ///
    /// # Safety
    /// The addresses were reserved with this length and the runs are mapped to them. No device uses them any more. The context
    /// of one of the devices is bound, or all of them are lost.
    pub unsafe fn free(&self) {
        let mut address = self.address;
        for run in &self.runs {
            // SAFETY: the caller guarantees it. It fails on a lost device, whose memory is freed with its context.
            let _ = unsafe { sys::cuMemUnmap(address, run.bytes) }.result();
            address += run.bytes as u64;
        }
        if self.address != 0 {
            // SAFETY: as above, and nothing is mapped to the addresses any more.
            let _ = unsafe { sys::cuMemAddressFree(self.address, self.reserved) }.result();
        }
    }
}

impl Device {
    /// Keeps up to `most` bytes of freed memory for later allocations. The driver waits for all kernels when memory is freed,
    /// so that without this, no kernels would run concurrently. Kept memory is freed if the limit leaves no room beside it.
    /// Once waiting for a stream has failed, nothing is kept any more, as the stream's work may not be finished.
    pub fn keep_freed_memory(&self, most: u64) {
        let mut leaving = Vec::new();
        let mut kept = self.kept();
        kept.most = most;
        while kept.bytes > most {
            leaving.extend(kept.take_oldest_memory());
        }
        while kept.page_bytes() > most || (most == 0 && !kept.pages.is_empty()) {
            leaving.extend(self.take_oldest_pages(&mut kept));
        }
        drop(kept);
        self.let_go(leaving);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // The counters are consistent between any two statements, even after a panic.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates at least `bytes` bytes, counted against the limit. Returns the address and the size.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<(CUdeviceptr, u64)> {
        self.bind()?;
        let mut capacity = {
            let mut kept = self.kept();
            let capacity = if kept.most > 0 { found_again(bytes) } else { bytes };
            if let Some(place) = kept.memory.iter().rposition(|(bytes, _)| *bytes == capacity) {
                let (_, address) = kept.memory.remove(place);
                kept.bytes -= capacity;
                self.held.fetch_add(capacity, Ordering::Relaxed);
                return Ok((address, capacity));
            }
            capacity
        };
        if self.reserve(capacity).is_err() {
            capacity = bytes;
            self.reserve(capacity)?;
        }
        let allocated = usize::try_from(capacity).map_err(Error::invalid).and_then(|size| {
            loop {
                // SAFETY: the size is not zero and the device's context is bound.
                match unsafe { result::malloc_sync(size) } {
                    Ok(address) => return Ok((address, capacity)),
                    Err(error) if error.0 != CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                        return Err(Error::driver("allocating memory", self.ordinal(), error));
                    }
                    Err(_) if self.free_some(self.kept()) => {}
                    Err(_) => {
                        let (device, limit) = (self.ordinal(), self.memory_limit);
                        return Err(Error::OutOfDeviceMemory { device, bytes, limit });
                    }
                }
            }
        });
        if allocated.is_err() {
            self.release(capacity);
        }
        allocated
    }

    /// Frees memory that [`Device::allocate`] returned. The memory may be kept if no work is left that uses it.
    pub(crate) fn give_back(&self, address: CUdeviceptr, capacity: u64, is_idle: bool) {
        let mut kept = self.kept();
        if is_idle && capacity <= kept.most {
            let mut leaving = Vec::new();
            while kept.bytes + capacity > kept.most {
                leaving.extend(kept.take_oldest_memory());
            }
            self.release(capacity);
            kept.bytes += capacity;
            kept.memory.push((capacity, address));
            drop(kept);
            self.let_go(leaving);
            return;
        }
        drop(kept);
        // Free first: bytes may be offered to others only once they are free.
        self.free(address);
        self.release(capacity);
    }

    /// Frees a part of the kept memory, or waits until another thread has done so. Returns false if there is none.
    fn free_some(&self, mut kept: MutexGuard<'_, Kept>) -> bool {
        let oldest = match kept.take_oldest_memory() {
            None => self.take_oldest_pages(&mut kept),
            oldest => oldest,
        };
        match oldest {
            Some(leaving) => {
                drop(kept);
                self.let_go([leaving]);
                true
            }
            None if kept.leaving > 0 => {
                drop(self.freed.wait(kept).unwrap_or_else(PoisonError::into_inner));
                true
            }
            None => false,
        }
    }

    /// Frees memory that is no longer kept.
    fn let_go(&self, leaving: impl IntoIterator<Item = Leaving>) {
        for memory in leaving {
            match &memory {
                Leaving::Memory(_, address) => self.free(*address),
                Leaving::Pages(pages) => self.free_pages(pages),
            }
            self.kept().leaving -= memory.device_bytes();
            self.freed.notify_all();
        }
    }

    fn free(&self, address: CUdeviceptr) {
        if self.bind().is_ok() {
            // SAFETY: allocated by `allocate`, and freed once. The driver waits for work that uses it. The call fails after the
            // loss of the device; the memory is then freed with the context.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    /// Takes kept pages with these runs. Of evenly mixed pages it also takes up to a quarter more, with as many of the device or
    /// fewer, but at least half of its share: mapping a page takes as long as moving many over the link.
    pub(crate) fn take_pages(&self, runs: &[MappedRun], node: u32, is_even: bool) -> Option<MappedPages> {
        let bytes = |runs: &[MappedRun]| {
            let device: usize = runs.iter().filter(|run| run.device.is_some()).map(|run| run.bytes).sum();
            (device, runs.iter().map(|run| run.bytes).sum::<usize>())
        };
        let (device, all) = bytes(runs);
        // How far pages are from what is wanted, if they will do: first by the device's bytes, then by all.
        let distance = |pages: &MappedPages| {
            if pages.node != node {
                return None;
            }
            if pages.runs == runs {
                return Some((0, 0));
            }
            let (its_device, its_all) = bytes(&pages.runs);
            // A caller that asks for memory of the device alone may have no room for CPU pages.
            let is_mixed = device < all && its_device <= device && 2 * its_device * all >= device * its_all;
            let is_like = is_mixed && (all..=all + all / 4 + SLACK).contains(&its_all);
            // Exact runs come first.
            (is_even && pages.is_even && is_like).then(|| (device - its_device, 1 + its_all - all))
        };
        let mut kept = self.kept();
        let found = kept.pages.iter().enumerate().filter_map(|(place, pages)| Some((distance(pages)?, place)));
        let (_, place) = found.min()?;
        let pages = kept.pages.remove(place);
        self.held.fetch_add(pages.device_bytes(), Ordering::Relaxed);
        self.pinned_budget().take(pages.host_bytes());
        Some(pages)
    }

    /// Keeps pages of this device and the CPU that nothing uses any more, which are counted against the limit. Pages that the
    /// budgets have no room for are freed, those used longest ago first.
    ///
    /// # Safety
    /// As [`MappedPages::free`], but for the context.
    pub(crate) unsafe fn keep_pages(&self, pages: MappedPages) {
        let mut surplus = Vec::new();
        let mut kept = self.kept();
        self.release(pages.device_bytes());
        self.pinned_budget().keep(pages.host_bytes());
        kept.pages.push(pages);
        // Without a budget for freed memory nothing is kept.
        let is_surplus =
            |kept: &Kept| kept.most == 0 || self.pinned_budget().is_exceeded() || kept.page_bytes() > kept.most;
        while is_surplus(&kept) && !kept.pages.is_empty() {
            surplus.extend(self.take_oldest_pages(&mut kept));
        }
        drop(kept);
        self.let_go(surplus);
    }

    fn take_oldest_pages(&self, kept: &mut Kept) -> Option<Leaving> {
        let pages = (!kept.pages.is_empty()).then(|| kept.pages.remove(0))?;
        self.pinned_budget().take(pages.host_bytes());
        kept.leaving += pages.device_bytes();
        Some(Leaving::Pages(pages))
    }

    fn free_pages(&self, pages: &MappedPages) {
        if self.bind().is_ok() {
            // SAFETY: they were idle when they were kept, and nothing has used them since.
            unsafe { pages.free() };
        }
    }

    /// Frees everything that is kept.
    pub(super) fn free_all_kept(&self) {
        while self.free_some(self.kept()) {}
    }

    /// Counts memory against the limit.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<()> {
        loop {
            let kept = self.kept();
            // `held` grows only while the lock is held.
            let held = self.held.load(Ordering::Relaxed);
            let others = [kept.bytes, kept.page_bytes(), kept.leaving, bytes];
            let sum = others.into_iter().try_fold(held, u64::checked_add);
            if sum.is_some_and(|sum| sum <= self.memory_limit) {
                self.held.fetch_add(bytes, Ordering::Relaxed);
                return Ok(());
            }
            if !self.free_some(kept) {
                return Err(Error::OverBudget { bytes, held, limit: self.memory_limit });
            }
        }
    }

    pub(crate) fn release(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Kept {
    fn take_oldest_memory(&mut self) -> Option<Leaving> {
        let (bytes, address) = (!self.memory.is_empty()).then(|| self.memory.remove(0))?;
        self.bytes -= bytes;
        self.leaving += bytes;
        Some(Leaving::Memory(bytes, address))
    }

    /// Bytes of the device's memory in kept pages.
    fn page_bytes(&self) -> u64 {
        self.pages.iter().map(MappedPages::device_bytes).sum()
    }
}

/// Rounds an allocation up to one of eight sizes per power of two, so that kept memory can be reused.
fn found_again(bytes: u64) -> u64 {
    const STEPS: u64 = 8;
    const SMALLEST: u64 = 4 << 10;
    let bytes = bytes.max(SMALLEST);
    let step = bytes.checked_next_power_of_two().map_or(1, |next| next / 2 / STEPS);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}
