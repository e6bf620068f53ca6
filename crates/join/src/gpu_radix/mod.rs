//! What the partitioned joins of a GPU have in common: all that follows their first pass.
//!
//! A first pass, of whoever, has cut both sides into pairs of partitions that fit GPU memory. A second pass on the GPU cuts
//! them further, until partitions of the build side fit the scratchpad, where they are joined (paper 1, section 5.1). Two pairs
//! are in GPU memory at a time: while half of the multiprocessors join one, the other half partitions the next, which keeps
//! the link busy (section 5.2). Where skew has made a partition larger than was planned, it is taken in pieces.

mod build;
mod fine;
mod pairs;
mod plan;
mod run;

pub(crate) use build::RadixBuild;
pub(crate) use fine::{FirstPass, LINE_TUPLES, TupleMemory, Tuples};
pub(crate) use plan::RadixPlan;
pub(crate) use run::RadixChunk;

/// The span in which a GPU makes the first pass over a side.
pub const FIRST_PASS: &str = "first pass";

/// The span in which a GPU makes the second pass over a partition of a side.
pub const SECOND_PASS: &str = "second pass";
