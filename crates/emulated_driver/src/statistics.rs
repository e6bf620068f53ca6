//! Counters of what the driver holds and has done.

/// Writes through the kernels' flush helper for CPU memory, with the layout in `host/runtime.hpp`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct FlushCounts {
    pub flushes: u64,
    pub full_lines: u64,
    pub full_line_bytes: u64,
    pub partial_lines: u64,
    pub partial_line_bytes: u64,
}

/// Counters of the stand-in since it was loaded.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Statistics {
    /// Current allocations and bytes: device memory, unified memory, pinned host memory.
    pub device_allocations: u64,
    pub device_bytes: u64,
    pub pinned_allocations: u64,
    pub pinned_bytes: u64,
    /// Current physical pieces and address ranges of virtual memory management.
    pub physical_pieces: u64,
    pub address_ranges: u64,
    pub streams: u64,
    pub events: u64,
    pub modules: u64,
    pub contexts: u64,
    /// The number of calls so far.
    pub allocations_made: u64,
    pub registrations_made: u64,
    pub copies_made: u64,
    pub launches_made: u64,
    /// Calls that wait for a stream, an event or a device, and those that free memory, as they wait too.
    pub waits_made: u64,
    /// Physical pieces that were mapped.
    pub mappings_made: u64,
    pub flushes: FlushCounts,
}
