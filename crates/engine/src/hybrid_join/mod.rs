//! The one join operator of Overspill.
//!
//! [`HybridJoinExec`] is the plan node. Its streams drive the algorithm of [`overspill_join::hybrid`]: they read the
//! inputs, feed them in, hand the output on, and afterwards read back what was spilled.

mod choice;
mod deferred;
mod disk;
mod dynamic_filter;
mod exec;
mod execution;
mod expressions;
mod input;
mod memory;
mod metrics;
mod narrow_dictionaries;
mod output;
mod schema;
mod stream;
mod timeline;

pub use exec::HybridJoinExec;
pub(crate) use exec::key_codec;
pub(crate) use expressions::to_datafusion;
