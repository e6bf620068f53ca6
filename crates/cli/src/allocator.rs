//! The allocator of the process.

use libmimalloc_sys::{mi_option_set, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of mimalloc's option `purge_delay`: how many milliseconds freed pages are kept for reuse. The bindings name
/// only some of the options.
const PURGE_DELAY: mi_option_t = 15;

/// The longest time that freed pages are kept, in milliseconds: mimalloc's default.
const LONGEST_DELAY: usize = 1000;

/// The memory limit, in bytes, for each millisecond that freed pages are kept.
const LIMIT_PER_MILLISECOND: usize = 3 << 20;

/// The memory limit, in bytes, below which freed pages are returned at once.
const SMALL_LIMIT: usize = 256 << 20;

/// The memory limit, in bytes, below which memory uses small pages. A huge page becomes resident as a whole once a byte of it
/// is used: large sorts take a third more memory with huge pages.
const HUGE_PAGES_LIMIT: usize = 4 << 30;

/// Sets the time that freed pages are kept: the smaller the memory limit, the sooner they return to the system. Pages that
/// the allocator keeps are not accounted to any query, and can exceed a small limit by themselves.
///
/// With a small limit they return at once, and memory uses small pages. At scale factor 1 in 64 MB, the 22 queries of TPC-H
/// then take a third more time, and 125 MB of resident memory instead of 200 on average, 190 instead of 340 at most. A sort
/// of 15 million texts in 256 MB takes 445 MB instead of 555.
///
/// Limits from [`SMALL_LIMIT`] on keep pages, because page faults are slow. With a limit of 300 MB a join that spills 1.1 GB
/// takes 2.8 s and 420 MB. If its pages returned at once, it would take 3.5 s and 325 MB. The sort takes 8 s and 540 MB, or 10 s
/// and 485 MB.
pub fn keep_to(memory_limit: usize) {
    let mut delay = (memory_limit / LIMIT_PER_MILLISECOND).min(LONGEST_DELAY);
    if memory_limit < HUGE_PAGES_LIMIT {
        // A system without this setting has no huge pages either.
        let _ = nix::sys::prctl::set_thp_disable(true);
    }
    if memory_limit < SMALL_LIMIT {
        delay = 0;
    }
    // SAFETY: stores an integer in an atomic of the allocator, which it may do at any time and from any thread.
    unsafe { mi_option_set(PURGE_DELAY, delay as _) };
}
