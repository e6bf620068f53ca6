//! Device code and its launchers. The sources are in `cuda/`, one header per concern; `cuda/kernels.cu` names the kernels.
//! The launchers check each kernel's requirements on its arguments, and return an error that names what a kernel cannot do.
//!
//! Counts of tuples are 64 bits wide throughout.

#![deny(missing_docs)]

mod codec;
mod columns;
mod gather;
mod hash;
mod hash_partition;
mod index;
mod join;
mod mapping;
mod measure;
mod memory_access;
mod module;
mod partition;
mod prefix_sum;
mod selection;
mod share;
mod validity;

pub use codec::{ColumnInput, ColumnOutput, CompressedColumn, Compressor, Decompressed, Decompressor, Timed};
pub use columns::{KeyColumn, MovedColumn};
pub use gather::{Gather, RowNumbers};
pub use hash::{HashFunction, Radix, murmur3_word};
pub use hash_partition::{HashPartitioner, HashPartitioning, HashPartitions};
pub use index::{DeviceIndex, DeviceSearch, IndexLookup, WindowedLookup};
pub use join::{
    AllocatedPairs, BuildKernel, HashTable, HostSlots, JoinSide, JoinedRows, LocalJoin, PairAggregate, PairFunction,
    PairSide, PairTotals, PartitionedJoin, PartitionedSide, Place, Position, RowTable, SharedBuild, SharedLists,
    SharedSlots, TableKind, TablePlacement, TableShares, Totals, Values,
};
pub use mapping::check_mapping;
pub use measure::{GpuEffort, measure_gpu};
pub use memory_access::{AccessPattern, MemoryAccess};
pub use module::Kernels;
pub use partition::{
    Algorithm, CountedKeys, Extents, FinePartitions, Histogram, Input, KeyWidth, Output, PartitionPlan, Partitioner,
    PayloadInput, SecondPass, SecondPassInput,
};
pub use prefix_sum::PrefixSum;
pub use selection::{
    Selection, SelectionAggregate, SelectionColumn, SelectionPage, SelectionPlan, SelectionRange, SelectionTotals,
    SelectionValue,
};
pub use validity::ValidityPacker;

pub use overspill_machine::{Error, Result};
