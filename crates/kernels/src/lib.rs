//! Device code and its launchers. The sources lie in `cuda/`, one header a concern; `cuda/kernels.cu` gives each kernel its
//! name. A launcher here knows what a kernel asks of its arguments, and refuses by name what it cannot do.
//!
//! Counts of tuples are 64 bits wide throughout.

#![deny(missing_docs)]

mod hash;
mod join;
mod measure;
mod memory_access;
mod module;
mod partition;
mod prefix_sum;
mod selection;
mod share;

pub use hash::{HashFunction, Radix};
pub use join::{
    BuildKernel, HashTable, HostSlots, JoinSide, PairAggregate, PairFunction, PairSide, PairTotals, Pairs,
    PartitionedJoin, PartitionedSide, Place, Position, SharedBuild, SharedLists, SharedSlots, TableKind,
    TablePlacement, TableShares, Values,
};
pub use measure::{GpuEffort, measure_gpu};
pub use memory_access::{AccessPattern, MemoryAccess};
pub use module::Kernels;
pub use partition::{
    Algorithm, CountedKeys, Histogram, Input, KeyWidth, Output, PartitionPlan, Partitioner, PayloadInput,
};
pub use prefix_sum::PrefixSum;
pub use selection::{
    Selection, SelectionAggregate, SelectionColumn, SelectionPage, SelectionPlan, SelectionRange, SelectionTotals,
    SelectionValue,
};

pub use overspill_machine::{Error, Result};
