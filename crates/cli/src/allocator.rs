//! The allocator of the process.

use libmimalloc_sys::{mi_option_set, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of mimalloc's option `purge_delay`: for how many milliseconds freed pages are kept, in case they are
/// wanted again. Its bindings name only some of the options.
const PURGE_DELAY: mi_option_t = 15;

/// The longest that freed pages are kept, in milliseconds: mimalloc's default.
const LONGEST_DELAY: usize = 1000;

/// The memory limit, in bytes, for each millisecond that freed pages are kept.
const LIMIT_PER_MILLISECOND: usize = 3 << 20;

/// The smaller the memory limit, the sooner freed pages return to the system: what the allocator keeps for later is not
/// in anybody's account, and can exceed a small limit itself.
pub fn keep_to(memory_limit: usize) {
    let delay = (memory_limit / LIMIT_PER_MILLISECOND).min(LONGEST_DELAY);
    // SAFETY: stores an integer in an atomic of the allocator, which it may do at any time and from any thread.
    unsafe { mi_option_set(PURGE_DELAY, delay as _) };
}
