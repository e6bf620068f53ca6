//! The theta join: a join on any condition that is not an equality of keys, or on none.
//!
//! Rows of one side are collected in [`Block`]s in memory. A [`BlockJoin`] joins batches of the other side, the *stream side*,
//! with them. If the build side fits in memory, its blocks stay and the probe side is streamed. Otherwise the build side is in
//! a file, each chunk of the probe side becomes a block, and the file is streamed.
//!
//! If the condition has inequalities between an expression of each side, a block is sorted by one or two of its expressions
//! ([`BlockSearch`]):
//!
//! ```text
//!   ON s.x >= b.lo AND s.x < b.hi                  block of b, sorted by lo
//!
//!     position   0    1    2    3    4    5        lo <= 25: positions 0..4, found by bisection
//!     lo        10   14   20   22   30   31        hi >  25: of these the ones whose rank by hi is 3 or more,
//!     rank(hi)   0    4    1    3    2    5                  found by skipping groups of positions whose
//!                     ^         ^                            ranks are all too low ([`ranks`])
//! ```
//!
//! If all inequalities compare one expression of the block, as they do when the points `s.x` are the block, the pairs of a
//! stream row are consecutive, and can be enumerated or counted without comparisons. The rest of the condition is evaluated for
//! the remaining pairs.

mod block;
mod keys;
mod output;
mod ranks;
mod scan;
mod spec;

#[cfg(test)]
mod tests;

pub use block::{Block, BlockBuilder, Pushed};
pub use keys::is_ordered;
pub use output::{MatchedRows, rows_by_match};
pub use scan::BlockJoin;
pub use spec::{BlockSearch, Bound, Comparison, ThetaSpec};
