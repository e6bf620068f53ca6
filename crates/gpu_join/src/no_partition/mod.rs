//! The no-partitioning hash join of a GPU (paper 2, section 5).
//!
//! The build side becomes one hash table, in GPU memory as far as it fits and then in CPU memory (the hybrid hash table, in
//! its greedy layout: section 5.3). Probe keys are streamed past it by one of eight transfer methods (section 4), so the probe
//! side may have any size. Each tuple costs one random access to the table, and the table is never copied or moved. This is
//! therefore the fastest join while the table fits GPU memory, and the slowest beyond that. GPUs that can access each other's
//! memory hold the table together and probe it (section 6.3).

mod build;
mod chunk;
mod fill_together;
mod interleaved;
mod table;

pub(crate) use build::Home;
pub(crate) use chunk::GpuTableChunk;
pub(crate) use table::GpuTable;
