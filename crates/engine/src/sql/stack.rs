//! Stacks for what walks deep trees by recursion.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use bytesize::ByteSize;
use datafusion::common::{Result, exec_err};

/// Stack bytes for planning each level of a statement, with room to spare. Untouched pages take no memory, only address
/// space.
const PLANNING_BYTES_A_LEVEL: usize = 256 << 10;

/// Minimum stack for planning: views add levels that the statement does not show.
const LEAST_PLANNING_BYTES: usize = 48 << 20;

/// Maximum stack for planning: the levels of several queries add up in one tree only if the queries read one another.
const MOST_PLANNING_BYTES: usize = 1 << 30;

/// Stack bytes for parsing each byte of text, up to the parser's own nesting limit; it checks that limit in large stack
/// frames.
const PARSING_BYTES_A_LEVEL: usize = 256 << 10;
const NESTED_PARSING_BYTES: usize = 56 << 20;

/// Stack bytes for visiting or dropping a level of the tree, for each byte of text. A level has at least two bytes of text.
const BYTES_OF_STACK_A_BYTE_OF_TEXT: usize = 512;

/// Maximum stack for parsing.
const MOST_PARSING_BYTES: usize = 2 << 30;

/// Runs `work` on a stack in proportion to `text`. `work` parses the text and drops the result.
pub(super) fn for_text<T>(text: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let nested = text.len().saturating_mul(PARSING_BYTES_A_LEVEL).min(NESTED_PARSING_BYTES);
    let deep = text.len().saturating_mul(BYTES_OF_STACK_A_BYTE_OF_TEXT).min(MOST_PARSING_BYTES);
    on_stack_of(nested.max(deep), work)
}

/// Polls `work` on a stack large enough to plan a statement of this [`depth`](super::Parsed::depth). The stack exists only
/// while `work` is polled, and only if the thread's own stack is too small.
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
    // Other threads may take memory before the stack is allocated.
    let bytes = bytes + bytes / 8;
    // SAFETY: maps fresh pages at an address that the system chooses, so nothing else refers to them, and unmaps exactly
    // these pages.
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
