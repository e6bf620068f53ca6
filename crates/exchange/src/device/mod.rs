//! Tables in GPU memory between ranks (paper 4, algorithms 1 and 2).
//!
//! Kernels partition the columns of a rank, rows in their order. Then ranks tell each other how many rows they send, and each allocates room
//! for all that it gets. Each column is then one message to each rank, from its part of the partitioned column to its place in the
//! received one: all rows go in one round, as in the paper. Where the transport takes GPU memory, a message is a part of the column itself, else
//! a copy of it in pinned memory.
//!
//! ```text
//!                     ┌▶ sizes ◀┐
//!   join ─▶ shuffle ─▶ level ─▶ room
//!    │         │        ├▶ messages
//!    └─────────┴────────┴──▶ table
//! ```

mod join;
mod level;
mod messages;
mod room;
mod shuffle;
mod sizes;
mod table;

use overspill_kernels::Kernels;
use overspill_machine::driver::Stream;
use overspill_machine::transfer::HostPool;

pub use join::{DeviceJoin, DeviceJoinSide, DeviceJoinSpec};
pub use shuffle::{DeviceShuffle, DeviceShuffleSpec, GpuPath};
pub use table::{DeviceColumn, DeviceTable};

/// What a rank works with.
struct Gpu<'a> {
    kernels: &'a Kernels,
    stream: &'a Stream,
    pool: &'a HostPool,
    path: GpuPath,
}
