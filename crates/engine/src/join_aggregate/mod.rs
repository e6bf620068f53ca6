//! An aggregate above a join on a GPU.
//!
//! [`JoinAggregateExec`] replaces an aggregate without groups over a join. The join's kernels aggregate the pairs that they
//! find, so no pair is written or crosses the link (paper 1, section 5.1). DataFusion's accumulators aggregate the pairs that
//! the CPU finds.

mod exec;
mod stream;

pub use exec::JoinAggregateExec;
