//! Joins on a GPU: what the strategies that use one have in common.
//!
//! A GPU joins words: a key of 64 bits and a value of 64 bits a row. Keys that do not fit a word are joined by their hashes,
//! and the CPU compares the keys themselves (paper 4, section 3.3); a value is the number of a row, or its columns where they
//! fit a word (early materialization). What comes back are pairs of values, or what they are aggregated to where nobody wants
//! the pairs. Everything else, join types, residual filters, nulls, columns of any width, is done with these pairs on the CPU,
//! by the same code that joins there.
//!
//! The probe side is joined chunk by chunk, and a chunk in units. The pairs of a unit are in CPU memory before the first of
//! them is handed on, and the rows of both sides stay there until the chunk is done. So whatever fails on the GPU, the CPU
//! knows which rows are left, and joins them.

mod aggregates;
mod columns;
mod gpu;
mod host_pool;
mod pairs;
mod peers;
mod request;
mod table;

pub use aggregates::PairAggregation;
pub(crate) use aggregates::{AggregatedPairs, PairAggregates};
pub(crate) use columns::{BuildColumns, BuildValues, HostColumns, KEY, ProbeKeys, words};
pub use gpu::Gpu;
pub(crate) use gpu::{Resident, Workbench};
pub(crate) use host_pool::{HostPool, PooledBuffer};
pub(crate) use pairs::{PAIR_BYTES, PairBlock, PairBuffers};
pub(crate) use peers::Seat;
pub(crate) use request::is_refusal;
pub use request::{
    DeviceCount, DeviceObserver, DeviceRequest, DeviceTuning, GpuStrategy, PrefixSumProcessor, StrategyAdvisor,
};
pub(crate) use table::{DeviceChunk, DeviceTable, Unit};

pub use crate::gpu_radix::{FIRST_PASS, SECOND_PASS};
