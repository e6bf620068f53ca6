//! Which query gets the GPU, which runs on the CPU, and which waits.
//!
//! A GPU is fast for one query and slow for many: each gets a part of it, and none runs on the CPU, which is idle meanwhile. Paper 5
//! (Takahashi, Yamada) moves queries that are bound for the GPU to the CPU by load. [`Schedule`] does so with one of several
//! [policies](PolicyKind). It is pure logic. The caller reports arrivals, ends and the time, and gets [decisions](Decision).
//! Nothing here runs a query or looks at a clock, so that the same policies run in the engine and in a [simulator] of it.
//!
//! ```text
//!   arrive, end, tick ──▶ Schedule ──▶ start on the CPU, start on the GPU, move to the CPU
//!                           │  │
//!                     Board ┘  └ Policy: all_cpu, all_gpu, first_come, paper5, overspill
//! ```
//!
//! Times are seconds. A prediction is the time that a query takes when it runs alone.

#![deny(missing_docs)]

mod board;
mod limits;
mod log;
mod policy;
mod processors;
mod query;
mod schedule;
pub mod simulator;
mod slots;

pub use board::{Board, Running, Speeds, Waiting};
pub use limits::Limits;
pub use log::{Entry, What, check};
pub use policy::{Action, Arrivals, Decision, OverspillSettings, Paper5Settings, PolicyKind, Reason};
pub use processors::{CoRun, Cpu, Processors};
pub use query::{Class, Demand, Place, QueryId, UserId};
pub use schedule::{Schedule, ScheduleConfig};
pub use slots::Slots;
