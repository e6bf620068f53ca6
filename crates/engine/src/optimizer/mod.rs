//! The physical optimizer rules that put [`HybridJoinExec`](crate::HybridJoinExec) into a plan.

mod hybrid_join_selection;
mod shared_build;
mod sort_merge_to_hash_join;

pub use hybrid_join_selection::HybridJoinSelection;
pub use shared_build::SharedBuild;
pub use sort_merge_to_hash_join::SortMergeToHashJoin;
