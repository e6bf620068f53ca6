//! Runs equal parts of a query once, such as the rows of a `WITH` that is read several times.
//!
//! DataFusion puts a copy of a common table expression wherever its name stands, and runs each copy. [`planner`] finds the copies
//! that are still equal in the optimized plan ([`equal`]), up to names that the optimizer makes up ([`generated_names`]), plans them once, and puts a [`SharedSubplanExec`] in the place of each: a
//! reader. In a finished plan the input lies below one of the readers, so that EXPLAIN and metrics have it once; the others name it.
//!
//! ```text
//!  reader 1        reader 2        reader 3       each with a position of its own
//!     │               │               │
//!     └───────┬───────┴───────────────┘
//!             ▼
//!   Partition: batches that some reader has yet to pass, in memory or in a spill file
//!             ▲
//!             │ one pull at a time, driven by any reader that has passed all of them
//!           input
//! ```
//!
//! No reader waits for another one to read: a join may read all rows of one before it asks another for its first. So what is
//! kept is not bounded, and moves to disk where memory is short. A reader that is dropped no longer keeps anything.

mod equal;
mod exec;
mod generated_names;
mod node;
mod planner;
mod run;
mod store;
mod stream;
mod subplan;

pub use exec::SharedSubplanExec;
pub(crate) use planner::plan_shared;
