//! The mark join of SQL's `IN`, with marks that are true, false or unknown.
//!
//! DataFusion's own mark joins have only true and false marks. [`NullAwareMarkJoin`] is our logical node; [`MarkJoinPlanner`]
//! plans it as a [`HybridJoinExec`](crate::HybridJoinExec) with one pass over the subquery.

mod node;
mod planner;

pub use node::NullAwareMarkJoin;
pub use planner::{MarkJoinPlanner, MarkJoinQueryPlanner};
