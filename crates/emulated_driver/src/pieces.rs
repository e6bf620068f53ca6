//! Virtual memory: address ranges, physical pieces, and their mappings.
//!
//! A piece is an anonymous file, a range is reserved address space, and mapping a piece maps its file there. A piece that is
//! mapped twice is thus one memory, and an access to memory that is not mapped or not made accessible faults.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use cudarc::driver::sys::CUresult;
use parking_lot::RwLock;

use crate::error::ensure;
use crate::ranges::{self, Kind, PIECES};

pub struct Piece {
    pub file: i32,
    pub bytes: usize,
    pub kind: Kind,
    /// Whether the owner has released the piece. It is freed with its last mapping.
    pub released: bool,
    pub mappings: usize,
}

pub struct Mapping {
    pub bytes: usize,
    pub piece: u64,
}

#[derive(Default)]
pub struct VirtualMemory {
    pub ranges: BTreeMap<usize, usize>,
    pub pieces: HashMap<u64, Piece>,
    pub mappings: BTreeMap<usize, Mapping>,
}

pub static MAPPED: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());

/// The flags of address space that holds nothing.
pub const RESERVED: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Maps address space without access: to a file, or reserved if `file` is -1. Returns its start.
///
/// # Safety
/// With `MAP_FIXED`, the range is the caller's, and nothing refers to its content.
pub unsafe fn map_space(address: usize, bytes: usize, flags: i32, file: i32) -> Result<usize, CUresult> {
    // SAFETY: as the caller promises.
    let start = unsafe { libc::mmap(address as *mut libc::c_void, bytes, libc::PROT_NONE, flags, file, 0) };
    ensure(start != libc::MAP_FAILED, CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    Ok(start as usize)
}

/// Whether every byte of a range is mapped, by any pieces.
pub fn is_mapped(address: usize, bytes: usize) -> bool {
    let mapped = MAPPED.read();
    let mut at = address;
    while at < address + bytes {
        match mapped.range(..=at).next_back() {
            Some((start, length)) if at < start + length => at = start + length,
            _ => return false,
        }
    }
    true
}

impl VirtualMemory {
    pub fn device_bytes(&self) -> u64 {
        self.pieces
            .values()
            .filter(|piece| matches!(piece.kind, Kind::MappedDevice(_)))
            .map(|piece| piece.bytes as u64)
            .sum()
    }

    pub fn unmap(&mut self, address: usize) {
        if let Some(mapping) = self.mappings.remove(&address) {
            // SAFETY: the range was reserved by `cuMemAddressReserve`, and becomes reserved again.
            let _ = unsafe { map_space(address, mapping.bytes, RESERVED | libc::MAP_FIXED, -1) };
            ranges::unmap(address);
            MAPPED.write().remove(&address);
            if let Some(piece) = self.pieces.get_mut(&mapping.piece) {
                piece.mappings -= 1;
            }
            self.drop_if_unused(mapping.piece);
        }
    }

    pub fn drop_if_unused(&mut self, handle: u64) {
        if self.pieces.get(&handle).is_some_and(|piece| piece.released && piece.mappings == 0) {
            let piece = self.pieces.remove(&handle).expect("found above");
            if let Kind::MappedDevice(device) = piece.kind {
                PIECES[device].fetch_sub(piece.bytes, Ordering::SeqCst);
            }
            // SAFETY: the piece owns the file.
            unsafe { libc::close(piece.file) };
        }
    }

    pub fn clear(&mut self) {
        let mapped: Vec<usize> = self.mappings.keys().copied().collect();
        for address in mapped {
            self.unmap(address);
        }
        let handles: Vec<u64> = self.pieces.keys().copied().collect();
        for handle in handles {
            if let Some(piece) = self.pieces.get_mut(&handle) {
                piece.released = true;
            }
            self.drop_if_unused(handle);
        }
        for (address, bytes) in std::mem::take(&mut self.ranges) {
            // SAFETY: reserved with this length.
            unsafe { libc::munmap(address as *mut libc::c_void, bytes) };
        }
    }
}
