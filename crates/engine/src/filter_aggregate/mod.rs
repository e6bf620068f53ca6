//! A filter and the aggregate above it, in one operator.
//!
//! [`FilterAggregateExec`] replaces an aggregate without groups over a filter, as in query 6 of TPC-H. Its streams drive
//! [`overspill_join::selection`]: they build no batches of filtered rows, and a GPU can run the selection.

mod exec;
mod expressions;
mod metrics;
mod planned;
mod stream;

pub use exec::FilterAggregateExec;
