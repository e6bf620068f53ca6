//! Hash tables and joins on the device.
//!
//! | table | keys | a lookup costs |
//! |---|---|---|
//! | perfect | unique, in a range of known size | one access |
//! | linear probing | any; each duplicate takes a slot | a walk to the first empty slot |
//! | multi-value | any; duplicates lie side by side | a walk to the key, then its values in order |
//! | bucket chaining, in scratchpad memory | any; for partitions | a chain |
//! | row numbers | any columns of fixed width; each duplicate takes a slot | a walk to the first empty slot, and reads of the keys |
//!
//! A tuple of the first four is a key of 4 or 8 bytes and a value of 4 or 8, which may be its row id. Results are aggregates, or pairs of values.

mod aggregates;
mod arguments;
mod host_slots;
mod host_threads;
mod local;
mod no_partitioning;
mod pairs;
mod partitioned;
mod slots;
mod table_kind;

pub use aggregates::{PairAggregate, PairFunction, PairSide, PairTotals, Totals};
pub(crate) use arguments::{HashTableArguments, JoinInput, JoinOutput};
pub use arguments::{JoinSide, Values};
pub use host_slots::{HostSlots, Place, Position, SharedLists, SharedSlots};
pub(crate) use local::LocalJoinArguments;
pub use local::{JoinedRows, LocalJoin, RowTable};
pub use no_partitioning::{BuildKernel, HashTable, SharedBuild};
pub use pairs::AllocatedPairs;
pub(crate) use partitioned::JoinTask;
pub use partitioned::{PartitionedJoin, PartitionedSide};
pub use slots::{TablePlacement, TableShares};
pub use table_kind::TableKind;
