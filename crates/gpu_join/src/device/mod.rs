//! Code shared by all strategies that join on a GPU.
//!
//! A GPU joins words: each row has a 64-bit key and a 64-bit value. Keys that do not fit a word are joined by their hashes, and
//! the CPU compares the keys themselves (paper 4, section 3.3). A value is a row number, or the row's columns if they fit a
//! word (early materialization). The GPU returns pairs of values, or aggregates of the pairs if the query needs nothing else.
//! The CPU does everything else with these pairs (join types, residual filters, nulls, columns of any width), using the same
//! code as a join on the CPU.
//!
//! The probe side is joined chunk by chunk, and each chunk in units. All pairs of a unit are in CPU memory before the first
//! pair is handed on, and the rows of both sides stay in CPU memory until the chunk is done. If the GPU fails at any point, or is
//! needed for other queries, the CPU knows which rows are left and joins them.

mod aggregates;
mod columns;
mod gpu;
mod link;
mod pairs;
mod problem;
mod request;
mod seat;
mod turns;

pub use aggregates::MOST_AGGREGATES;
pub(crate) use aggregates::{AggregatedPairs, PairAggregates};
pub(crate) use columns::{BuildColumns, BuildValues, HostColumns, KEY, ProbeColumns, ProbeKeys, words};
pub use gpu::{Gpu, KeptCopy};
pub(crate) use gpu::{Resident, Workbench};
pub(crate) use link::{ColumnOf, LinkColumn};
pub use link::{LinkCompression, LinkCompressor};
pub(crate) use pairs::{PAIR_BYTES, PairBlock, too_many_pairs};
pub use problem::DeviceProblem;
pub use request::{DeviceCount, DeviceObserver, DeviceRequest, DeviceTuning, StrategyAdvisor};
pub(crate) use seat::Seat;
pub use turns::{DeviceShare, ShareLender};

/// The result of joining a unit of a probe chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Some probe rows were joined.
    Joined,
    /// No unit is left.
    None,
}
