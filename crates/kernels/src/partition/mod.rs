//! Radix partitioning (paper 1, section 4): the four algorithms, and the histograms and offsets before them.
//!
//! | algorithm | a tuple goes | good for |
//! |---|---|---|
//! | Standard | straight to its place | comparison |
//! | Linear | through a batch that a block sorts | partitions in GPU memory |
//! | Shared | through a buffer of its partition in scratchpad memory | CPU memory, fanouts whose buffers hold whole lines |
//! | Hierarchical | through a second, larger buffer in GPU memory as well | CPU memory, large fanouts |
//!
//! The output is columnar. Partitions follow each other, each starting at a multiple of [`PartitionPlan::alignment`] tuples.

mod extents;
mod histogram;
mod plan;
mod run;
mod second_pass;

pub use extents::Extents;
pub use histogram::{CountedKeys, Histogram};
pub use plan::{Algorithm, KeyWidth, PartitionPlan};
pub(crate) use run::PartitionArguments;
pub use run::{Input, Output, Partitioner, PayloadInput};
pub use second_pass::{FinePartitions, SecondPass, SecondPassInput};
