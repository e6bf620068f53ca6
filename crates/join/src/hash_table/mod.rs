//! The hash table of the in-memory join: perfect hashing where keys lie close together, else buckets of entries that
//! lie side by side.

mod deal;
mod index_cost;
mod join_table;
mod perfect;
mod unchained;
mod visited;

#[cfg(test)]
mod tests;

pub use index_cost::IndexCost;
pub use join_table::{JoinTable, MatchCursor};
pub use visited::VisitedRows;
