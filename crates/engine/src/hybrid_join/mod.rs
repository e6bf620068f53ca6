//! The one join operator of Overspill.
//!
//! [`HybridJoinExec`] is the plan node. Its streams drive the algorithm of [`overspill_join::hybrid`]: they read the inputs,
//! pass them to the algorithm, return its output, and afterwards read back what was spilled.

mod deferred;
pub(crate) mod disk;
mod dynamic_filter;
pub(crate) mod equivalences;
mod exec;
mod execution;
pub(crate) mod expressions;
mod gpu;
pub(crate) mod input;
pub(crate) mod memory;
pub(crate) mod metrics;
mod narrow_dictionaries;
pub(crate) mod output;
mod schema;
mod start;
pub(crate) mod starting;
mod stream;
pub(crate) mod timeline;

pub use exec::HybridJoinExec;
pub(crate) use exec::{join_type, key_codec};
pub(crate) use expressions::to_datafusion;
