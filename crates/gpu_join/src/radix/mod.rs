//! Code shared by the partitioned joins of a GPU: everything after their first pass.
//!
//! A first pass, by the GPU or the CPU, has cut both sides into pairs of partitions that fit GPU memory. A second pass on the
//! GPU cuts them further, until partitions of the build side fit the scratchpad, where they are joined (paper 1, section 5.1).
//! Two pairs are in GPU memory at a time: half of the multiprocessors join one while the other half partitions the next, which
//! keeps the link busy (section 5.2). A partition that skew has made larger than planned is processed in pieces.

mod build;
mod fine;
mod pairs;
mod plan;
mod run;

pub(crate) use build::RadixBuild;
pub use fine::{FIRST_PASS, SECOND_PASS};
pub(crate) use fine::{FirstPass, LINE_TUPLES, Tuples};
pub(crate) use plan::RadixPlan;
pub(crate) use run::{RadixChunk, RadixTable};
