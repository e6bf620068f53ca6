//! Rows between the ranks of a cluster: the shuffle of the repartitioned join (paper 4).
//!
//! A rank is a GPU or a socket, with a process or a thread of its own; a [`Topology`] says which are on one node. A [`transport`] brings
//! messages from rank to rank. A [`ShuffleSpec`] brings rows with equal keys to the same rank, on the way that its [`Levels`] say; a [`RowsSpec`] brings them
//! to one rank, or to all. A [`DeviceShuffleSpec`] does the former with rows in GPU memory, and a
//! [`DeviceJoinSpec`] joins them there.
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch};
//! use futures::executor::block_on;
//! use futures::future::join_all;
//! use futures::{TryStreamExt, stream};
//! use overspill_exchange::transport::{Job, JobId, in_process};
//! use overspill_exchange::{Levels, Result, ShuffleSpec, Topology};
//!
//! // Four ranks on two nodes have the same thousand keys.
//! let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
//! let batch = RecordBatch::try_from_iter([("key", keys)])?;
//! let endpoints = in_process(&Arc::new(Topology::of_nodes(4, 2)?), None);
//! let ranks = endpoints.iter().map(|endpoint| {
//!     let spec = ShuffleSpec {
//!         number: 0,
//!         schema: batch.schema(),
//!         keys: vec![0],
//!         null_equal: false,
//!         levels: Levels::Two,
//!         is_compressed: true,
//!         round_bytes: 1 << 20,
//!         heavy: None,
//!     };
//!     let shuffle = spec.start(&Job::begin(endpoint, JobId(1)), stream::iter([Ok::<_, String>(batch.clone())])).unwrap();
//!     futures::future::try_join(shuffle.driver, shuffle.output.try_collect::<Vec<_>>())
//! });
//! let rows = block_on(join_all(ranks)).into_iter().map(|rank| Ok(rank?.1.iter().map(RecordBatch::num_rows).sum()));
//! let rows: Vec<usize> = rows.collect::<Result<_>>()?;
//! assert_eq!(rows.iter().sum::<usize>(), 4000);
//! // Each key is on one rank, four times.
//! assert!(rows.iter().all(|rows| rows % 4 == 0 && *rows < 1400));
//! # Ok::<(), overspill_exchange::Error>(())
//! ```
//!
//! ```text
//!   shuffle ─┬▶ partition ─▶ heavy_keys ─▶ gather
//!            └▶ all_to_all ─▶ transport ─▶ topology
//!   rows ───────────┘              │
//!   gather ────────────────────────┘
//!   device ─▶ transport
//!   measure ─▶ rows, partition, member ─▶ gather
//! ```

#![deny(missing_docs)]
#![deny(unsafe_code)]

mod all_to_all;
mod device;
mod error;
mod gather;
mod heavy_keys;
mod measure;
mod member;
mod partition;
mod rank;
mod rows;
mod shuffle;
mod topology;
pub mod transport;

pub use all_to_all::{Columns, ExchangeMetrics, Exchanged, GpuBytes, Work};
pub use device::{
    DeviceColumn, DeviceJoin, DeviceJoinSide, DeviceJoinSpec, DeviceShuffle, DeviceShuffleSpec, DeviceTable, GpuPath,
};
pub use error::{Error, Result};
pub use gather::all_gather;
pub use heavy_keys::{HeavyKeys, Side};
pub use measure::{NetworkEffort, measure_network};
pub use member::Member;
pub use overspill_advisor::Levels;
pub use rank::Rank;
pub use rows::RowsSpec;
pub use shuffle::{Shuffle, ShuffleSpec};
pub use topology::Topology;
