//! The integration tests of the engine, in one binary so that DataFusion is linked once.
//!
//! - `differential`: random queries give the answers of stock DataFusion and of DuckDB, in ample and in little memory.
//! - `faults`: reservations, writes and reads that fail, streams that are dropped or never polled.
//! - `changes`: statements that change tables and files do what they say, or nothing.
//! - `constant_columns`: outer joins and grouping sets over columns that are one value.
//! - `bad_input`: inputs and budgets at the edge of what makes sense.
//! - `device`: joins on the emulated device, down to its least memory, and with every failure of its driver.
//! - `membership`: IN and NOT IN over subqueries, wherever they stand.
//! - `membership_filters`: rows that are dropped far below a join, by its keys.
//! - `files`: CSV and JSON files that DataFusion reads wrongly.
//! - `filter_order`: filters whose conjuncts change places, random ones and which rows each is evaluated on.
//! - `filter_pushdown`: filters below joins whose columns have equal names.
//! - `hybrid_aggregate`: aggregates with few and many groups, in ample and in little memory.
//! - `indexes`: statements about indexes, and joins that look rows up in them.
//! - `join_order`: joins in every order that gives the same rows, and which order is chosen.
//! - `large_values`: a single large value among small ones makes no large batch of a join's output.
//! - `limited_memory`: sorts and windows in less memory than their rows take.
//! - `planning`: plans after the session has changed, and what sessions share.
//! - `query_work`: what `overspill machine --measure` finds of queries.
//! - `scheduling`: sessions that share a scheduler: who waits, who runs where, and with how much memory.
//! - `selection`: filters with aggregates above them, random ones and which plans are fused.
//! - `side_swaps`: joins whose sides change roles while they are read.
//! - `set_operations`, `set_comparisons`: EXCEPT ALL and INTERSECT ALL; ANY and ALL.
//! - `shared_subplan`: equal parts of a query that run once.
//! - `spill_compression`: spill files of compressed blocks.
//! - `sql_files`: the plain files of `tests/sql/`, each in ample and little memory and on the emulated device.
//! - `strategies`: how joins are planned to run in memory, and large tables each way.
//! - `theta`: joins without an equality, random ones in ample and in little memory, with faults and given up on the way.
//! - `types`: what names stand for, and how values of different types meet.

mod bad_input;
mod changes;
mod constant_columns;
mod device;
mod differential;
mod faults;
mod files;
mod filter_order;
mod filter_pushdown;
mod harness;
mod hybrid_aggregate;
mod indexes;
mod join_order;
mod large_values;
mod limited_memory;
mod membership;
mod membership_filters;
mod planning;
mod query_work;
mod scheduling;
mod selection;
mod set_comparisons;
mod set_operations;
mod shared_subplan;
mod side_swaps;
mod spill_compression;
mod sql_files;
mod strategies;
#[allow(dead_code)] // The tests of kernels use more of it.
#[path = "../../../kernels/tests/integration/test_gpu.rs"]
mod test_gpu;
mod theta;
mod types;
