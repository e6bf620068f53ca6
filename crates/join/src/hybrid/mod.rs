//! The hybrid hash join: a hash table in memory over the partitions that fit, files for the others.
//!
//! [`HybridBuild`] reads the build side and becomes a [`BuildSide`], which any number of [`Prober`]s share. A prober
//! joins probe rows at once if their build partition is in memory, and writes the others to files. Spilled rows are
//! joined afterwards, one pair of partitions at a time, by the same algorithm one level deeper (Grace and hybrid hash
//! join: Shapiro, 1986; paper 1, section 2.1); a partition that hashing cannot split is joined in passes over chunks
//! of its build side ([`ChunkBuild`]).

mod accelerator;
mod aggregation;
mod build;
mod build_side;
mod chunk;
mod keyed_batch;
mod lookup;
mod membership;
mod output;
mod pairs;
mod payload;
mod plan;
mod probe;
mod row_work;

#[cfg(test)]
mod tests;

pub use accelerator::{AcceleratedRows, Accelerator};
pub use aggregation::{AggregatingStream, AggregatingStreams, PairAggregation};
pub use build::{Built, HybridBuild};
pub use build_side::{BuildEmitter, BuildSide, SubqueryFacts};
pub use chunk::ChunkBuild;
pub use lookup::pair_finder;
pub use membership::{KeyHashes, Membership};
pub use output::{BuildRows, Rows, SideRows};
pub use pairs::{Found, Lane, LeftOver, PairBlock, PairFinder, PairRows, ProbeRows, Wait, Wanted};
pub use payload::PackedPayload;
pub use plan::JoinPlan;
pub use probe::{MatchedRows, ProbeSpill, Prober, Step};
pub use row_work::measure_row_work;
