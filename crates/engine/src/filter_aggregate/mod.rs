//! A filter and the aggregate above it, in one operator.
//!
//! [`FilterAggregateExec`] takes the place of an aggregate without groups over a filter, as in query 6 of TPC-H. Its streams
//! drive [`overspill_join::selection`]: no batch of filtered rows is made, and a GPU can do it.

mod exec;
mod expressions;
mod metrics;
mod stream;

pub use exec::FilterAggregateExec;
