//! The join algorithms of Overspill, and [`selection`]: Arrow in, Arrow out.
//!
//! Nothing here knows about queries. Whoever runs a join describes it with a [`JoinSpec`](spec::JoinSpec), lends memory
//! through [`MemoryHost`](memory::MemoryHost) and files through [`SpillStore`](spill::SpillStore), feeds batches in and
//! takes batches out; it also decides when to read what has been spilled.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod atomic;
mod co_processing;
mod cpu_partitioned;
pub mod device;
pub mod error;
mod gpu_no_partition;
mod gpu_radix;
pub mod hash_table;
pub mod hybrid;
pub mod join_type;
pub mod keys;
pub mod memory;
mod parallel;
pub mod radix;
mod rows;
pub mod selection;
pub mod spec;
pub mod spill;
pub mod theta;
mod triton;

pub use error::{JoinError, Result};
pub use join_type::JoinType;
