//! Runs queries of Overspill among the ranks of a job: processes that `mpirun` starts, or threads.
//!
//! The first rank, the [`Leader`], parses and plans a query, and returns its rows; the others [`serve`] it. The plan is DataFusion's, with
//! Overspill's joins, for as many partitions as all ranks have threads. It is cut where rows must come together, and each rank
//! runs its part: the same operators over its own share of the files, with exchanges between them.
//!
//! ```text
//!   first rank                                        the others
//!   ----------                                        ----------
//!   SQL ─▶ plan ─▶ distribute ─▶ a part for each ────▶ serve
//!                                 │                      │
//!          rows ◀── RankGatherExec ◀── rows ─────────────┤
//!                   RankShuffleExec ◀──── rows ────────▶ │
//! ```

#![deny(missing_docs)]

mod codec;
mod distribute;
mod error;
mod exec;
mod job;
mod leader;
mod member;
mod message;
mod metrics;
mod part;
mod planner;
mod query;

pub use leader::Leader;
pub use member::{refuse, serve};
