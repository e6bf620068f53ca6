//! The join operator for conditions that are not equalities of keys, and for no condition at all.
//!
//! [`ThetaJoinExec`] is the plan node. Its streams drive the algorithm of [`overspill_join::theta`]: they read the inputs,
//! build blocks, and join them with batches of the other side.

mod condition;
mod context;
mod exec;
mod execution;
mod metrics;
mod progress;
mod stream;

pub use exec::ThetaJoinExec;
