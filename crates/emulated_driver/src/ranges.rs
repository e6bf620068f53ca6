//! The memory that the driver knows: of devices, unified, and pinned host memory.
//!
//! All of it is host memory. It is kept outside the driver's state because running kernels query the location of addresses.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::CUresult;
use parking_lot::RwLock;

use crate::error::{Outcome, ensure};
use crate::settings::{ALLOCATION, settings};
use crate::statistics::Statistics;

/// The content of fresh memory, so that code that relies on zeros fails.
const POISON: u8 = 0xA5;
/// The alignment of `cuMemAlloc`.
const ALIGNMENT: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Memory of the device with this number.
    Device(usize),
    Unified(usize),
    /// The caller's memory, registered, so that it is pinned.
    Registered,
    /// Host pages of virtual memory management.
    MappedHost,
    /// Device pages of virtual memory management.
    MappedDevice(usize),
}

pub struct Range {
    pub bytes: usize,
    pub kind: Kind,
}

#[derive(Default)]
pub struct Memory {
    pub ranges: BTreeMap<usize, Range>,
    allocations_made: u64,
}

pub static MEMORY: RwLock<Memory> = RwLock::new(Memory { ranges: BTreeMap::new(), allocations_made: 0 });

/// The counters of this memory; the others are 0.
pub fn statistics() -> Statistics {
    let memory = MEMORY.read();
    let mut held = Statistics { allocations_made: memory.allocations_made, ..Statistics::default() };
    for range in memory.ranges.values() {
        match range.kind {
            Kind::Device(_) | Kind::Unified(_) => {
                held.device_allocations += 1;
                held.device_bytes += range.bytes as u64;
            }
            Kind::Registered => {
                held.pinned_allocations += 1;
                held.pinned_bytes += range.bytes as u64;
            }
            Kind::MappedHost | Kind::MappedDevice(_) => {}
        }
    }
    held
}

/// The maximum number of devices with virtual memory, enough for any test.
pub const DEVICES: usize = 16;

/// Bytes of each device's memory in pieces of virtual memory.
pub static PIECES: [AtomicUsize; DEVICES] = [const { AtomicUsize::new(0) }; DEVICES];

/// All bytes in use on a device.
pub fn used_bytes(device: usize) -> usize {
    let memory = MEMORY.read();
    let pieces = PIECES.get(device).map_or(0, |pieces| pieces.load(Ordering::SeqCst));
    let allocated: usize = memory
        .ranges
        .values()
        .filter(|range| matches!(range.kind, Kind::Device(of) | Kind::Unified(of) if of == device))
        .map(|range| range.bytes)
        .sum();
    allocated + pieces
}

/// The kind of memory at an address, if the driver knows it.
pub fn kind_of(address: usize) -> Option<Kind> {
    let memory = MEMORY.read();
    let (start, range) = memory.ranges.range(..=address).next_back()?;
    (address < start + range.bytes).then_some(range.kind)
}

/// Whether `bytes` bytes from `address` on lie in one range.
pub fn contains(address: usize, bytes: usize) -> bool {
    let memory = MEMORY.read();
    memory.ranges.range(..=address).next_back().is_some_and(|(start, range)| address + bytes <= start + range.bytes)
}

/// Whether an address is CPU memory. Addresses that the driver does not know are.
pub extern "C" fn is_cpu_memory(address: usize) -> bool {
    !matches!(kind_of(address), Some(Kind::Device(_) | Kind::Unified(_) | Kind::MappedDevice(_)))
}

pub fn map(address: usize, bytes: usize, kind: Kind) {
    MEMORY.write().ranges.insert(address, Range { bytes, kind });
}

pub fn unmap(address: usize) {
    MEMORY.write().ranges.remove(&address);
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, ALIGNMENT).expect("sizes are far below isize::MAX")
}

pub fn allocate(bytes: usize, kind: Kind) -> Result<usize, CUresult> {
    ensure(bytes > 0, CUresult::CUDA_ERROR_INVALID_VALUE)?;
    MEMORY.write().allocations_made += 1;
    ensure(!ALLOCATION.strikes(), CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    if let Kind::Device(device) | Kind::Unified(device) = kind {
        let limit = settings().memory;
        ensure(bytes <= limit.saturating_sub(used_bytes(device)), CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    }
    // SAFETY: the size is not zero.
    let address = unsafe { alloc(layout(bytes)) };
    ensure(!address.is_null(), CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    // SAFETY: freshly allocated with this size.
    unsafe { address.write_bytes(POISON, bytes) };
    MEMORY.write().ranges.insert(address as usize, Range { bytes, kind });
    Ok(address as usize)
}

pub fn free(address: usize) -> Outcome {
    let mut memory = MEMORY.write();
    match memory.ranges.get(&address) {
        Some(&Range { bytes, kind: Kind::Device(_) | Kind::Unified(_) }) => {
            memory.ranges.remove(&address);
            // SAFETY: allocated by `allocate` with this layout, and no longer in the table.
            unsafe { dealloc(address as *mut u8, layout(bytes)) };
            Ok(())
        }
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Frees the memory of a device at the end of its context.
pub fn clear_device(device: usize) {
    remove(|kind| matches!(kind, Kind::Device(of) | Kind::Unified(of) if of == device));
}

/// Frees all memory at the end of the last context.
pub fn clear() {
    remove(|_| true);
}

fn remove(is_gone: impl Fn(Kind) -> bool) {
    MEMORY.write().ranges.retain(|address, range| {
        let is_gone = is_gone(range.kind);
        if is_gone && matches!(range.kind, Kind::Device(_) | Kind::Unified(_)) {
            // SAFETY: allocated by `allocate` with this layout, and no longer in the table.
            unsafe { dealloc(*address as *mut u8, layout(range.bytes)) };
        }
        !is_gone
    });
}
