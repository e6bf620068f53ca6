//! Radix partitions, in memory or on disk.

mod partitions;
mod radix;
mod store;

#[cfg(test)]
mod tests;

pub use partitions::{Finished, RadixPartitions, SpilledPartition};
pub use radix::Radix;
pub use store::{SpillStore, SpillTuning};
