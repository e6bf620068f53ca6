//! Joins that read of an indexed table only what they match (paper 3).
//!
//! [`IndexLookupExec`] is a side of a join whose key is an indexed column. The join reads the other side first and keeps the keys. If
//! they are few beside the rows of the table, it is not scanned: each distinct key is looked up in the index, in order, and the
//! rows that are found take the place of the scan, below the same filters and projections.
//!
//! A join always reads its build side first. If the index is on the build side, [`KeysAhead`] reads the probe side before it, and keeps
//! the batches until they are probed. Nothing is read twice.
//!
//! ```text
//!   HybridJoinExec                             keys of the build side
//!     build side                                  │ sorted, each once
//!     IndexLookupExec: index=i ───── few keys? ───┤
//!       FilterExec                                ▼
//!         DataSourceExec (table)              FilterExec over the rows of the table with these keys
//! ```
//!
//! If the join has a GPU, it looks the keys up, in a copy of the index ([`DeviceRows`](overspill_gpu_join::DeviceRows)).
//!
//! The paper joins the pairs that lookups find. Here the rows are joined once more by the hash table of the build side, which is small,
//! so that every kind of join, residual filters, further keys and spilling are those of other joins, and an index whose words stand for
//! several values is right as well. As keys are sorted, lookups need no windows: they already come in the order of the index.

mod candidate;
mod exec;
mod keys;
mod keys_ahead;
mod lookup;
mod on_gpu;
mod side;

pub(crate) use candidate::index_lookup;
pub use exec::IndexLookupExec;
pub(crate) use keys::{KeyCollector, LookupExecution};
pub(crate) use keys_ahead::KeysAhead;
