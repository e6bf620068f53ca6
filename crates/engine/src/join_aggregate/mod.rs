//! An aggregate above a join on a GPU.
//!
//! [`JoinAggregateExec`] takes the place of an aggregate without groups over a join. The join's kernels then aggregate the pairs that
//! they find, of which nothing is written or crosses the link (paper 1, section 5.1); pairs that the CPU finds are aggregated as
//! DataFusion does.

mod exec;
mod stream;

pub use exec::JoinAggregateExec;
