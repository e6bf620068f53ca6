//! The allocator of the process.

use libmimalloc_sys::{mi_option_set, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of mimalloc's option `purge_delay`: for how many milliseconds freed pages are kept, in case they are
/// wanted again. Its bindings name only some of the options.
const PURGE_DELAY: mi_option_t = 15;

/// Memory limits below this many bytes count every page.
const SMALL_LIMIT: usize = 1 << 30;

/// Under a small memory limit, freed pages return to the system at once: what the allocator keeps for later is not in
/// anybody's account, and can exceed the limit itself.
pub fn keep_to(memory_limit: usize) {
    if memory_limit < SMALL_LIMIT {
        // SAFETY: stores an integer in an atomic of the allocator, which it may do at any time and from any thread.
        unsafe { mi_option_set(PURGE_DELAY, 0) };
    }
}
