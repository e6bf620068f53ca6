//! The one join operator of Overspill.
//!
//! [`HybridJoinExec`] is the plan node. Its streams drive the algorithm of [`overspill_join::hybrid`]: they read the inputs,
//! pass them to the algorithm, return its output, and afterwards read back what was spilled.

mod context;
mod deferred;
mod dynamic_filter;
mod early_build;
mod estimate;
mod exec;
mod execution;
mod filter_pushdown;
mod gpu;
mod metrics;
mod pairs;
mod schema;
mod side_swap;
mod start;
mod stream;

pub use estimate::EstimatedRows;
pub use exec::HybridJoinExec;
pub(crate) use exec::{join_type, key_codec};
pub(crate) use filter_pushdown::{keeps_build_columns, keeps_probe_columns, named_once};
