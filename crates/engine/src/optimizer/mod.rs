//! The physical optimizer rules that put [`HybridJoinExec`](crate::HybridJoinExec) and
//! [`FilterAggregateExec`](crate::FilterAggregateExec) into a plan.

mod filter_aggregate_fusion;
mod hybrid_join_selection;
mod shared_build;
mod sort_merge_to_hash_join;

pub use filter_aggregate_fusion::FilterAggregateFusion;
pub use hybrid_join_selection::HybridJoinSelection;
pub use shared_build::SharedBuild;
pub use sort_merge_to_hash_join::SortMergeToHashJoin;
