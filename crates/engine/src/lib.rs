//! Overspill: joins for Apache DataFusion that finish.
//!
//! One call, [`OverspillSessionExt::with_overspill`], makes every equi-join of a session run on [`HybridJoinExec`], a
//! hybrid hash join whose state moves to disk when its memory budget is spent, and every other join on [`ThetaJoinExec`],
//! which searches by inequalities and moves its build side to disk; it also lets filters run together with the
//! aggregates above them ([`FilterAggregateExec`]), and evaluates the conjuncts of others in the order of their measured costs
//! ([`AdaptiveFilterExec`]). Where a GPU joins, it aggregates as well ([`JoinAggregateExec`]).
//!
//! [`sql::sql`] replaces `SessionContext::sql` for statements that are long or deep, that merge columns by `USING`, or that
//! have rows of several values on the left of `IN`.

#![deny(missing_docs)]

mod adaptive_filter;
mod admission;
pub mod advisor;
pub mod analyzer;
pub mod cancellation;
mod checked_arithmetic;
pub mod config;
mod decimals;
pub mod device;
mod exact_sum;
mod fallible;
pub mod files;
mod filter_aggregate;
mod float_extremes;
mod fused_aggregate;
mod grouping_sets;
mod hybrid_aggregate;
mod hybrid_join;
mod index_lookup;
mod index_scan;
mod indexes;
mod join_aggregate;
mod join_execution;
mod local_store;
pub mod mark_join;
mod membership_filter;
pub mod memory;
mod optimizer;
mod planning;
mod prepared;
pub mod query_work;
mod row_changes;
mod running_plan;
mod runtime;
pub mod scheduler;
pub mod session;
mod shared_subplan;
pub mod size;
mod sort;
pub mod spill;
pub mod sql;
mod table_samples;
mod theta_join;
pub mod travel;
mod window;
pub mod write_aside;

pub use adaptive_filter::AdaptiveFilterExec;
pub use admission::AdmissionExec;
pub use config::{
    BlockCompression, BuildSide, Choice, FilterOrder, GpuLinkCompression, IndexUse, JoinOrder, Named, OverspillConfig,
    Selection, ShuffleCompression,
};
pub use filter_aggregate::FilterAggregateExec;
pub use hybrid_aggregate::HybridAggregateExec;
pub use hybrid_join::{EstimatedRows, HybridJoinExec};
pub use index_lookup::IndexLookupExec;
pub use index_scan::IndexScanExec;
pub use join_aggregate::JoinAggregateExec;
pub use join_execution::output::OutputBatches;
pub use local_store::LocalStore;
pub use membership_filter::MembershipExec;
pub use overspill_advisor::{PrefixSumProcessor, Strategy};
pub use overspill_join::hash_table::TableChoice;
pub use overspill_machine::DeviceKind;
pub use overspill_machine::transfer::TransferMethod;
pub use running_plan::RunningPlan;
pub use runtime::OverspillRuntime;
pub use scheduler::{QueryUser, Scheduler, SchedulerConfig};
pub use session::OverspillSessionExt;
pub use shared_subplan::SharedSubplanExec;
pub use sort::SpillingSortExec;
pub use theta_join::ThetaJoinExec;
pub use window::CountedWindowExec;

/// The README's example compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
