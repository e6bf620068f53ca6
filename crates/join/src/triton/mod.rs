//! The Triton join (paper 1, section 5): a radix-partitioned hash join of a GPU whose state may be larger than GPU memory.
//!
//! A first pass partitions each side by the top bits of the hash, reading CPU memory and writing pages of which some lie in GPU
//! memory and the others in CPU memory, evenly mixed, so that later passes keep the link busy all the time (section 5.3). A
//! second pass partitions a part of GPU memory's size further, until partitions fit the scratchpad, where they are joined.
//! Bytes cross the link in order, in full lines, and at most three times; nothing is read at random but scratchpad memory.
//!
//! The build side takes its first pass when it has been read, each chunk of the probe side when it is joined. A unit is one
//! partition of the first pass. Where skew has made one of them larger than was planned, it is taken in pieces.

mod chunk;
mod plan;
mod relation;

pub(crate) use chunk::{TritonBuild, TritonChunk};
