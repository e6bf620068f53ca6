//! Partitions of the first pass and of the second pass.

use std::fmt::Debug;

use overspill_kernels::{
    Algorithm, Input, JoinSide, Kernels, Output, PartitionPlan, PartitionedSide, Partitioner, PayloadInput, Radix,
    Values,
};
use overspill_machine::Result;
use overspill_machine::driver::Stream;
use overspill_machine::memory::{DeviceBuffer, View};
use tracing::debug_span;

use crate::device::{Gpu, KEY, PooledBuffer};

pub(super) const KEY_BYTES: u64 = 8;

/// Name of the span in which a GPU runs the first pass over a side.
pub const FIRST_PASS: &str = "first pass";

/// Name of the span in which a GPU runs the second pass over a partition of a side.
pub const SECOND_PASS: &str = "second pass";

/// Number of 4-byte values per line. The columns of a piece start at a multiple of this number of tuples.
pub(crate) const LINE_TUPLES: u64 = 32;

/// A relation that a first pass has partitioned.
pub(crate) trait FirstPass: Debug + Send + Sync {
    /// Whether to keep the build side's second-pass partitions in GPU memory, because its first-pass partitions are not there.
    fn keeps_fine_partitions(&self) -> bool;

    /// Number of partitions.
    fn fanout(&self) -> usize;

    fn tuples(&self, partition: usize) -> u64;

    /// Returns the tuples of a partition for kernels, in pieces of at most `most` tuples, a multiple of [`LINE_TUPLES`].
    fn pieces<'a>(
        &'a self,
        gpu: &'a Gpu,
        partition: usize,
        most: u64,
    ) -> Box<dyn Iterator<Item = Result<Tuples<'a>>> + 'a>;

    /// Bytes of the relation in all memories.
    fn bytes(&self) -> u64;

    /// Bytes of the relation in CPU memory.
    fn spilled_bytes(&self) -> u64;
}

/// Returns the tuples of a partition; `None` if it has none, or more than a piece of `most` tuples.
pub(super) fn whole<'a>(
    relation: &'a dyn FirstPass,
    gpu: &'a Gpu,
    partition: usize,
    most: u64,
) -> Result<Option<Tuples<'a>>> {
    let first = relation.pieces(gpu, partition, most).next().transpose()?;
    Ok(first.filter(|tuples| tuples.count == relation.tuples(partition)))
}

/// Tuples that kernels read.
#[derive(Debug)]
pub(crate) struct Tuples<'a> {
    pub(crate) memory: TupleMemory<'a>,
    pub(crate) count: u64,
    pub(crate) value_bytes: u64,
    /// The share of the tuples that is in CPU memory.
    pub(crate) spilled_share: f64,
}

/// The memory that holds the keys and values of tuples.
#[derive(Debug)]
pub(crate) enum TupleMemory<'a> {
    /// Memory of the relation.
    Relation(View<'a>, View<'a>),
    /// A copy, in separate buffers.
    Staged(PooledBuffer, PooledBuffer),
}

impl Tuples<'_> {
    fn views(&self) -> Result<(View<'_>, View<'_>)> {
        match &self.memory {
            TupleMemory::Relation(keys, values) => Ok((*keys, *values)),
            TupleMemory::Staged(keys, values) => Ok((keys.view()?, values.view()?)),
        }
    }

    /// Bytes that cross the link when `tuples` of the tuples are read.
    pub(super) fn link_bytes(&self, tuples: u64) -> u64 {
        (tuples as f64 * (KEY_BYTES + self.value_bytes) as f64 * self.spilled_share) as u64
    }

    /// Partitions `tuples` tuples from `first` on further in GPU memory, with the Shared algorithm (paper 1, section 4.2).
    /// Tuples in CPU memory are copied to GPU memory while they are counted, so that they cross the link only once (section
    /// 6.2.3).
    pub(super) fn refine(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        first: u64,
        tuples: u64,
        radix: Radix,
    ) -> Result<FinePartitions> {
        let _refining = debug_span!(SECOND_PASS, rows = tuples).entered();
        let value_bytes = self.value_bytes;
        let plan = PartitionPlan::new(kernels, Algorithm::Shared, KEY, &[value_bytes], radix, tuples, 0)?;
        let room = plan.output_tuples();
        let column = |tuples: u64, width: u64| DeviceBuffer::new(kernels.device(), tuples * width);
        let (mut keys, mut values) = (column(room, KEY_BYTES)?, column(room, value_bytes)?);
        let (all_keys, all_values) = self.views()?;
        let input = Input {
            keys: all_keys.slice(first * KEY_BYTES, tuples * KEY_BYTES)?,
            payloads: vec![PayloadInput::Column(all_values.slice(first * value_bytes, tuples * value_bytes)?)],
        };
        let mut partitioner = Partitioner::new(kernels, plan)?;
        let mut output = Output { keys: keys.view_mut(), payloads: vec![values.view_mut()] };
        let partitions = if self.spilled_share == 0.0 {
            partitioner.run(stream, &input, &mut output)?
        } else {
            let (mut keys, mut values) = (column(tuples, KEY_BYTES)?, column(tuples, value_bytes)?);
            let mut copy = Output { keys: keys.view_mut(), payloads: vec![values.view_mut()] };
            partitioner.run_copying(stream, &input, &mut copy, &mut output)?
        };
        Ok(FinePartitions { keys, values, value_bytes, radix, partitions })
    }
}

/// Tuples in GPU memory whose partitions should fit the scratchpad.
#[derive(Debug)]
pub(super) struct FinePartitions {
    keys: DeviceBuffer,
    values: DeviceBuffer,
    value_bytes: u64,
    pub(super) radix: Radix,
    partitions: Vec<(u64, u64)>,
}

impl FinePartitions {
    pub(super) fn side(&self) -> PartitionedSide<'_> {
        let values = match self.value_bytes {
            4 => Values::Four(self.values.view()),
            _ => Values::Eight(self.values.view()),
        };
        PartitionedSide { side: JoinSide { keys: self.keys.view(), values }, partitions: &self.partitions }
    }

    pub(super) fn tuples(&self) -> u64 {
        self.partitions.iter().map(|(_, tuples)| tuples).sum()
    }

    /// Bytes of GPU memory that the partitions take.
    pub(super) fn bytes(&self) -> u64 {
        self.keys.bytes() + self.values.bytes()
    }
}
