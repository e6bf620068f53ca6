//! The hash tables of the in-memory join.
//!
//! Perfect (`perfect.rs`, and with payloads `perfect_payloads.rs`): keys of a dense range, here 10 to 14. A slot has the number
//! of a row plus one, 0 for none. If keys repeat, rows are grouped as in an unchained table, with a slot for each bucket.
//!
//! ```text
//! key        10  11  12  13  14
//! slots     | 2 | 4 | 0 | 3 | 1 |        key - 10 is the slot
//! ```
//!
//! Rows ordered by key (`perfect.rs`): the range is full and each key is there once, so that rows are put in the order of their
//! keys. There is no table.
//!
//! ```text
//! key        10  11  12  13  14
//! row         0   1   2   3   4          key - 10 is the row
//! ```
//!
//! Linear probing (`linear_probing.rs`): unique keys. The hash selects a cache line of four keys and four values; what does
//! not fit goes to the next line of the partition.
//!
//! ```text
//!           | key key key key   value value value value |   full: the search goes on
//! hash ---> | key key  -   -    value value   -     -   |   has room: the search ends
//!           | key  -   -   -    value   -     -     -   |
//! ```
//!
//! Unchained (`unchained.rs`): any keys. A directory has the start of each bucket, and the rows of a key are adjacent.
//!
//! ```text
//! hash ---> starts    | 0 | 2 | 2 | 5 | 6 |
//!                       |       |   \___________
//!                       v       v               v
//!           entries   | a 3   b 0 | c 1   c 4   d 2 | e 5 |   key and row, by bucket, key and row
//! ```

mod bloom_filter;
mod deal;
mod index_cost;
mod join_table;
mod key_set;
mod linear_probing;
mod matches;
mod multi;
mod payload_rows;
mod perfect;
mod perfect_payloads;
mod regions;
mod slots;
mod unchained;
mod unique;
mod visited;

#[cfg(test)]
mod tests;

pub use index_cost::IndexCost;
pub(crate) use join_table::{FoundRows, MatchCursor};
pub use join_table::{JoinTable, TableChoice};
pub(crate) use key_set::KeySet;
pub(crate) use matches::Lookups;
pub(crate) use payload_rows::{ChunkKeys, PayloadRows};
pub(crate) use regions::Regions;
pub use visited::VisitedRows;

/// Keys whose cache misses overlap; the prefetched lines stay in the cache until they are read.
const LOOKED_UP_TOGETHER: usize = 512;
