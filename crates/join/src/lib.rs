//! The join algorithms of Overspill, and [`selection`]: Arrow in, Arrow out.
//!
//! Nothing here knows about queries. The caller describes a join with a [`JoinSpec`](spec::JoinSpec), lends memory through
//! [`MemoryHost`](memory::MemoryHost) and files through [`SpillStore`](spill::SpillStore), pushes input batches and receives
//! output batches. The caller also decides when to read what has been spilled.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod atomic;
pub mod error;
pub mod grouping;
pub mod hash_table;
pub mod hybrid;
pub mod index_join;
pub mod join_type;
pub mod keys;
pub mod memory;
pub mod narrow;
pub mod parallel;
pub mod radix;
pub mod rows;
pub mod selection;
pub mod spec;
pub mod spill;
pub mod theta;

pub use error::{JoinError, Result};
pub use join_type::JoinType;
