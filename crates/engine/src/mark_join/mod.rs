//! The mark join of SQL's `IN`, whose mark is true, false or unknown.
//!
//! DataFusion's own mark joins have marks that are true or false. [`NullAwareMarkJoin`] is the logical node of ours;
//! [`MarkJoinPlanner`] plans it as a [`HybridJoinExec`](crate::HybridJoinExec) in one pass over the subquery.

mod node;
mod planner;

pub use node::NullAwareMarkJoin;
pub use planner::{MarkJoinPlanner, MarkJoinQueryPlanner};
