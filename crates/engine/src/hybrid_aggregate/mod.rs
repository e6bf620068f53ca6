//! Aggregates with groups: those of each stream in a cache, then those of each partition.
//!
//! [`HybridAggregateExec`] stands for three of DataFusion's nodes, a partial aggregate, a repartition by the groups' keys, and a final aggregate; or for one
//! that does all of it, where groups are in one stream each.
//!
//! ```text
//! input streams                                                   output streams
//! rows ---> groups of the stream, as many as fit a cache --\  /--> groups of one partition after the other --->
//!      \                                                    \/
//!       `-> rows as they are, if few are of one group --> partitions of rows and states, in memory or in files
//! ```
//!
//! A stream adds rows to a table of groups ([`local`], [`table`]). If the table is full, its states are partitioned by the hash of their keys
//! ([`partitions`]), and it starts anew. If its first rows show that its groups will have hardly more than one row each, the next rows are partitioned as they are. So each table,
//! here and when the states of a partition are merged ([`merge`]), stays in a cache however many groups there are: two phases with a small
//! table first, as in Leis et al., "Morsel-driven parallelism", SIGMOD 2014, section 4.4.
//!
//! With `GROUPING SETS`, `ROLLUP` or `CUBE` a stream groups its rows once, by all keys. The groups of each set are made of those of the set with the fewest keys that has all of its own
//! ([`sets`], [`cascade`]).
//!
//! DataFusion's own accumulators hold the states of the groups, and so decide on types, overflow and nulls. While a stream has few groups, exact sums, averages of
//! decimals and numbers of rows are first added in words of 64 bits ([`few_groups`]), with the sums, differences and products below them ([`narrow`]); these may be
//! in a projection that the node takes in.

mod cascade;
mod exec;
mod few_groups;
mod files;
mod functions;
mod local;
mod merge;
mod metrics;
mod narrow;
mod partitions;
mod run;
mod sets;
mod table;

use datafusion::logical_expr::GroupsAccumulator;

pub use exec::HybridAggregateExec;

/// The accumulators of all functions.
type Accumulators = Vec<Box<dyn GroupsAccumulator>>;
