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

/// The memory limit, in bytes, below which nothing that is free is kept. What the allocator and huge pages keep beside
/// the rows of a query is up to 150 MB with two threads, whatever the limit.
const SMALL_LIMIT: usize = 192 << 20;

/// The smaller the memory limit, the sooner freed pages return to the system: what the allocator keeps for later is not
/// in anybody's account, and can exceed a small limit itself.
///
/// With a small limit they return at once, and memory comes in small pages: a huge one is resident as a whole once a
/// byte of it is used. At scale factor 1 in 64 MB the 22 queries of TPC-H then take a third more time, and 125 MB of
/// resident memory instead of 200 on average, 190 instead of 340 at most.
pub fn keep_to(memory_limit: usize) {
    let mut delay = (memory_limit / LIMIT_PER_MILLISECOND).min(LONGEST_DELAY);
    if memory_limit < SMALL_LIMIT {
        // Where the system has no such setting it has no huge pages either.
        let _ = nix::sys::prctl::set_thp_disable(true);
        delay = 0;
    }
    // SAFETY: stores an integer in an atomic of the allocator, which it may do at any time and from any thread.
    unsafe { mi_option_set(PURGE_DELAY, delay as _) };
}
