//! Finds pairs of rows on a GPU, for joins of [`overspill_join::hybrid`].
//!
//! A [`DeviceRequest`] is the [`Accelerator`](overspill_join::hybrid::Accelerator) of a join: it takes the build side in the
//! form that the strategy asks for, and gives each stream a finder. The join types, residual filters and output rows are those
//! of a join on the CPU. [`DeviceRows`] looks keys up in an index, and [`selection`] runs filters with aggregates.
//!
//! ```text
//!   finder ─▶ build ─▶ table ─┬▶ no_partition ─────────┬▶ device
//!                             ├▶ co_processing ────────┤
//!                             ├▶ triton ──────────▶ radix
//!                             └▶ cpu_partitioned ─▶ radix
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod build;
mod co_processing;
mod collected;
mod cpu_partitioned;
mod device;
mod finder;
mod flight;
mod index_lookup;
mod no_partition;
mod radix;
pub mod selection;
mod table;
mod triton;

pub use device::{
    DeviceCount, DeviceObserver, DeviceProblem, DeviceRequest, DeviceShare, DeviceTuning, Gpu, KeptCopy,
    LinkCompression, LinkCompressor, MOST_AGGREGATES, ShareLender, StrategyAdvisor,
};
pub use index_lookup::{DeviceRoom, DeviceRows};
pub use radix::{FIRST_PASS, SECOND_PASS};
