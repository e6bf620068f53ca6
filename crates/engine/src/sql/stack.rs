//! Stacks for what walks deep trees by recursion.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use bytesize::ByteSize;
use datafusion::common::{Result, exec_err};

/// What planning a statement takes for each of its levels, with room to spare. Pages that are not touched are never there,
/// but address space is.
const PLANNING_BYTES_A_LEVEL: usize = 256 << 10;

/// The least that planning gets: views have levels that the statement does not show.
const LEAST_PLANNING_BYTES: usize = 48 << 20;

/// The most that planning gets: levels of several queries are only together in one tree where these read one another.
const MOST_PLANNING_BYTES: usize = 1 << 30;

/// What parsing takes for each byte of text up to the parser's own limit of nesting, which it checks in large frames.
const PARSING_BYTES_A_LEVEL: usize = 256 << 10;
const NESTED_PARSING_BYTES: usize = 56 << 20;

/// What a level of the tree takes while it is visited or dropped, for each byte of text; a level has two bytes at least.
const BYTES_OF_STACK_A_BYTE_OF_TEXT: usize = 512;

/// The most that parsing gets.
const MOST_PARSING_BYTES: usize = 2 << 30;

/// Runs `work`, which parses `text` and drops what comes of it, on a stack in proportion to the text.
pub(super) fn for_text<T>(text: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let nested = text.len().saturating_mul(PARSING_BYTES_A_LEVEL).min(NESTED_PARSING_BYTES);
    let deep = text.len().saturating_mul(BYTES_OF_STACK_A_BYTE_OF_TEXT).min(MOST_PARSING_BYTES);
    on_stack_of(nested.max(deep), work)
}

/// Polls `work` on a stack that suffices to plan a statement of this [`depth`](super::Parsed::depth). The stack is there
/// only while `work` is polled, and only where the thread's own is too small.
///
/// # Errors
/// An execution error if there is no address space for the stack, and those of `work`.
pub async fn on_large_stack<T>(depth: usize, work: impl Future<Output = Result<T>>) -> Result<T> {
    let bytes = depth.saturating_mul(PLANNING_BYTES_A_LEVEL).clamp(LEAST_PLANNING_BYTES, MOST_PLANNING_BYTES);
    let mut work = pin!(work);
    poll_fn(|context| match on_stack_of(bytes, || Ok(work.as_mut().poll(context))) {
        Ok(polled) => polled,
        Err(error) => Poll::Ready(Err(error)),
    })
    .await
}

fn on_stack_of<T>(bytes: usize, work: impl FnOnce() -> Result<T>) -> Result<T> {
    if stacker::remaining_stack().is_some_and(|left| left >= bytes) {
        return work();
    }
    if !is_available(bytes) {
        return exec_err!(
            "A statement as long or as deeply nested as this one takes a stack of up to {}, for which the process has no \
             address space: raise its limit (ulimit -v, vm.overcommit_memory), or split the statement",
            ByteSize::b(bytes as u64).display().iec()
        );
    }
    stacker::grow(bytes, work)
}

/// Whether a stack of this size can be had. `stacker` panics where it cannot.
#[cfg(unix)]
fn is_available(bytes: usize) -> bool {
    // Other threads take memory before the stack is there.
    let bytes = bytes + bytes / 8;
    // SAFETY: maps fresh pages at an address that the system chooses, which nothing else can refer to, and unmaps just these.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let pages = libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0);
        pages != libc::MAP_FAILED && libc::munmap(pages, bytes) == 0
    }
}

#[cfg(not(unix))]
fn is_available(_: usize) -> bool {
    true
}
