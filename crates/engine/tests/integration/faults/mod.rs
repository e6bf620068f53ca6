//! Reservations, writes and reads that fail, and streams that are dropped, never polled or polled in any order: each
//! run ends in the right answer or in an error that says what happened, and leaves nothing behind.

pub mod files;
mod nth_failure;
pub mod pool;
mod streams;
