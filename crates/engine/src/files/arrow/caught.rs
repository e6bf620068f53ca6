//! Turns panics into errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread becomes an error, so that a panic hook should not report it.
pub fn panic_is_caught() -> bool {
    IS_CAUGHT.get()
}

/// Runs a function and returns its panic as an error. After a panic, the data that it worked on must not be used again.
///
/// # Errors
/// Returns the message of a panic.
pub fn caught<T>(function: impl FnOnce() -> T) -> Result<T, String> {
    let outer = IS_CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(function));
    IS_CAUGHT.set(outer);
    result.map_err(|panic| message(panic.as_ref()))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("its reader failed").to_owned()
}
