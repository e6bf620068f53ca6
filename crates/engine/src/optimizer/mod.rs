//! The physical optimizer rules that insert [`HybridJoinExec`](crate::HybridJoinExec),
//! [`ThetaJoinExec`](crate::ThetaJoinExec), [`FilterAggregateExec`](crate::FilterAggregateExec),
//! [`JoinAggregateExec`](crate::JoinAggregateExec), [`SpillingSortExec`](crate::SpillingSortExec) and
//! [`CountedWindowExec`](crate::CountedWindowExec) into plans.

mod filter_aggregate_fusion;
mod float_statistics;
mod grouping_sets_input;
mod hybrid_join_selection;
mod join_aggregate_fusion;
mod limited_memory_selection;
mod shared_build;
mod sort_merge_to_hash_join;
mod theta_join_selection;
mod yielding;

pub use filter_aggregate_fusion::FilterAggregateFusion;
pub use float_statistics::{FloatBounds, FloatFilters};
pub use grouping_sets_input::GroupingSetsInput;
pub use hybrid_join_selection::HybridJoinSelection;
pub use join_aggregate_fusion::JoinAggregateFusion;
pub use limited_memory_selection::LimitedMemorySelection;
pub use shared_build::SharedBuild;
pub use sort_merge_to_hash_join::SortMergeToHashJoin;
pub use theta_join_selection::ThetaJoinSelection;
pub use yielding::YieldingOperators;
