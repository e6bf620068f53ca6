//! The allocator of the process, and the size of the pages that it gets from the system.

use libmimalloc_sys::{mi_option_set, mi_option_t};
use nix::libc;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of mimalloc's option `purge_delay`: how many milliseconds freed pages are kept for reuse. The bindings name
/// only some of the options.
const PURGE_DELAY: mi_option_t = 15;

/// The number of mimalloc's option `allow_thp`: whether it advises the system to back its memory with huge pages.
const ALLOW_HUGE_PAGES: mi_option_t = 43;

/// Linux 6.18 and later: a process without huge pages has them still where it asks for them.
const EXCEPT_ADVISED: libc::c_ulong = 1 << 1;

/// Runs before the allocator sets itself up, which it does before `main`: it then takes memory in which a huge page would stay
/// for the rest of the process.
#[used]
// SAFETY: the linker collects the functions of these sections, which the loader calls in the order of their numbers, before
// those without a number. This one needs nothing that others set up.
#[unsafe(link_section = ".init_array.00101")]
static BEFORE_FIRST_ALLOCATION: extern "C" fn() = {
    extern "C" fn take_small_pages() {
        // SAFETY: stores an integer in an atomic of the allocator, which keeps it when it reads its environment.
        unsafe { mi_option_set(ALLOW_HUGE_PAGES, 0) };
    }
    take_small_pages
};

/// The longest time that freed pages are kept, in milliseconds: mimalloc's default.
const LONGEST_DELAY: usize = 1000;

/// The memory limit, in bytes, for each millisecond that freed pages are kept.
const LIMIT_PER_MILLISECOND: usize = 3 << 20;

/// The memory limit, in bytes, below which freed pages are returned at once.
const SMALL_LIMIT: usize = 256 << 20;

/// The memory limit, in bytes, below which memory uses small pages. A huge page becomes resident as a whole once a byte of it
/// is used: large sorts take a third more memory with huge pages.
const HUGE_PAGES_LIMIT: usize = 4 << 30;

/// Lets memory have huge pages where it asks for them, as hash tables do. The allocator asks for none: the system clears a whole
/// huge page when its first byte is used, and the allocator uses a little of many. With small pages the 99 queries of TPC-DS at
/// scale factor 1 take 0.93 of the time, the 22 of TPC-H at 10 take 0.92.
///
/// Told to ask for none, the allocator has forbidden huge pages to the whole process. This lifts that.
pub fn allow_huge_pages() {
    let set = |is_disabled: libc::c_ulong, flags: libc::c_ulong| {
        // SAFETY: sets a flag of this process, and reads no memory.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, is_disabled, flags, 0 as libc::c_ulong, 0 as libc::c_ulong) }
    };
    if set(1, EXCEPT_ADVISED) != 0 {
        set(0, 0);
    }
}

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
