//! The radix join: probe rows are partitioned before they probe the hash table, so that it need not be read at random.

mod partitioner;
mod region;

pub use partitioner::{PartitionCursor, PartitionMethod, RadixPartitioner};
pub use region::ProbeRegions;
pub(crate) use region::region_of_this_machine;
