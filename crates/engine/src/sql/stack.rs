//! Stacks for what walks deep trees by recursion.

use std::future::poll_fn;
use std::pin::pin;

/// What planning a statement of [`MAX_DEPTH`](super::MAX_DEPTH) levels takes, with room to spare. Pages that are not
/// touched are never there.
const PLANNING_BYTES: usize = 1 << 30;

/// The least that parsing gets: the parser's own limit of nesting is checked by it, in large frames.
const LEAST_PARSING_BYTES: usize = 64 << 20;

/// The most that parsing gets.
const MOST_PARSING_BYTES: usize = 2 << 30;

/// What a level of the tree takes while it is visited or dropped, for each byte of text; a level has two bytes at least.
const BYTES_OF_STACK_A_BYTE_OF_TEXT: usize = 512;

/// Runs `work`, which parses `text` and drops what comes of it, on a stack in proportion to the text.
pub(super) fn for_text<T>(text: &str, work: impl FnOnce() -> T) -> T {
    let bytes = text.len().saturating_mul(BYTES_OF_STACK_A_BYTE_OF_TEXT);
    stacker::grow(bytes.clamp(LEAST_PARSING_BYTES, MOST_PARSING_BYTES), work)
}

/// Polls `work` on a stack that suffices to plan every statement that [`parse`](super::parse) and
/// [`check_depth`](super::check_depth) do not refuse. It is
/// there only while `work` is polled.
pub async fn on_large_stack<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| stacker::grow(PLANNING_BYTES, || work.as_mut().poll(context))).await
}
