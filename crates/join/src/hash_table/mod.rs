//! The hash tables of the in-memory join: perfect hashing for keys in a dense range, linear probing for unique keys, else
//! buckets of contiguous entries.

mod bloom_filter;
mod deal;
mod index_cost;
mod join_table;
mod linear_probing;
mod matches;
mod payload_rows;
mod perfect;
mod perfect_payloads;
mod regions;
mod slots;
mod unchained;
mod visited;

#[cfg(test)]
mod tests;

pub use index_cost::IndexCost;
pub use join_table::{JoinTable, MatchCursor, TableChoice};
pub(crate) use matches::Lookups;
pub use payload_rows::{ChunkKeys, PayloadRows};
pub(crate) use regions::Regions;
pub use visited::VisitedRows;

/// Keys whose cache misses overlap; the prefetched lines stay in the cache until they are read.
const LOOKED_UP_TOGETHER: usize = 512;
