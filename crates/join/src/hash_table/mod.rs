//! The hash table of the in-memory join: bucket chaining over packed keys.

mod chained;
mod index_cost;
mod join_table;
mod visited;

#[cfg(test)]
mod tests;

pub use chained::ChainedTable;
pub use index_cost::IndexCost;
pub use join_table::{JoinTable, MatchCursor};
pub use visited::VisitedRows;
