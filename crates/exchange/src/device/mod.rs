//! Tables in GPU memory between ranks (paper 4, algorithms 1 and 2).
//!
//! Kernels partition the columns of a rank, rows in their order. Then ranks tell each other how many rows they send, and each allocates room
//! for all that it gets. Each column is then one message to each rank, from its part of the partitioned column to its place in the
//! received one: all rows go in one round, as in the paper.
//!
//! ```text
//!   shuffle ─▶ level ─▶ message
//!      └─────────┴────▶ table
//! ```

mod level;
mod message;
mod shuffle;
mod table;

pub use shuffle::{DeviceShuffle, DeviceShuffleSpec};
pub use table::{DeviceColumn, DeviceTable};
