//! Partitions of the first pass and of the second pass.

use std::fmt::Debug;

use overspill_kernels::{FinePartitions, Kernels, Radix, SecondPass, SecondPassInput};
use overspill_machine::Result;
use overspill_machine::driver::Queued;
use tracing::debug_span;

use crate::device::Gpu;

const KEY_BYTES: u64 = 8;

/// Name of the span in which a GPU runs the first pass over a side.
pub const FIRST_PASS: &str = "first pass";

/// Name of the span in which a GPU runs the second pass over a partition of a side.
pub const SECOND_PASS: &str = "second pass";

/// Number of 4-byte values per line. The columns of a piece start at a multiple of this number of tuples.
pub(crate) const LINE_TUPLES: u64 = 32;

/// A relation that a first pass has partitioned.
pub(crate) trait FirstPass: Debug + Send + Sync {
    /// Whether kernels read copies of its partitions, which the CPU makes one by one. The second-pass partitions of such a build
    /// side are kept in GPU memory; others are where they are worth keeping.
    fn is_staged(&self) -> bool;

    /// Number of partitions.
    fn fanout(&self) -> usize;

    fn tuples(&self, partition: usize) -> u64;

    /// Returns the tuples of a partition for kernels, in pieces of at most `most` tuples, a multiple of [`LINE_TUPLES`].
    fn pieces<'a>(&'a self, gpu: &'a Gpu, partition: usize, most: u64)
    -> Box<dyn Iterator<Item = Result<Tuples>> + 'a>;

    /// Bytes of the relation in all memories.
    fn bytes(&self) -> u64;

    /// Bytes of the relation in CPU memory.
    fn spilled_bytes(&self) -> u64;
}

/// Returns the tuples of a partition; `None` if it has none, or more than a piece of `most` tuples.
pub(super) fn whole(relation: &dyn FirstPass, gpu: &Gpu, partition: usize, most: u64) -> Result<Option<Tuples>> {
    let first = relation.pieces(gpu, partition, most).next().transpose()?;
    Ok(first.filter(|tuples| tuples.columns.tuples() == relation.tuples(partition)))
}

/// Tuples that kernels read.
#[derive(Debug, Clone)]
pub(crate) struct Tuples {
    pub(crate) columns: SecondPassInput,
    /// The share of the tuples that is in CPU memory.
    pub(crate) spilled_share: f64,
}

impl Tuples {
    /// Bytes that cross the link when `tuples` of the tuples are read.
    pub(super) fn link_bytes(&self, tuples: u64) -> u64 {
        (tuples as f64 * (KEY_BYTES + self.columns.value_bytes) as f64 * self.spilled_share) as u64
    }

    /// Queues the second pass over all tuples.
    pub(super) fn refine(
        &self,
        pass: &mut SecondPass<'_>,
        kernels: &Kernels,
        radix: Radix,
    ) -> Result<Queued<FinePartitions>> {
        let _refining = debug_span!(SECOND_PASS, rows = self.columns.tuples()).entered();
        pass.queue(kernels, &self.columns, radix)
    }

    /// The `count` tuples from `first` on.
    pub(super) fn part(&self, [first, count]: [u64; 2]) -> Result<Self> {
        let SecondPassInput { keys, values, value_bytes, is_spilled } = &self.columns;
        let columns = SecondPassInput {
            keys: keys.slice(first * KEY_BYTES, count * KEY_BYTES)?,
            values: values.slice(first * value_bytes, count * value_bytes)?,
            value_bytes: *value_bytes,
            is_spilled: *is_spilled,
        };
        Ok(Self { columns, spilled_share: self.spilled_share })
    }
}
