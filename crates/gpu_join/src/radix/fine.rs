//! Partitions of the first pass and of the second pass.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use overspill_kernels::{FinePartitions, Kernels, Radix, SecondPass, SecondPassInput};
use overspill_machine::Result;
use overspill_machine::driver::Queued;
use overspill_machine::memory::SharedView;
use tracing::debug_span;

use crate::device::{DeviceCount, DeviceRequest, Gpu, LinkColumn};

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
    Ok(first.filter(|tuples| tuples.count() == relation.tuples(partition)))
}

/// Tuples that kernels read.
#[derive(Debug, Clone)]
pub(crate) struct Tuples {
    columns: Columns,
    /// The share of the tuples that is in CPU memory.
    spilled_share: f64,
}

/// Keys, and a value of each.
#[derive(Debug, Clone)]
enum Columns {
    /// Kernels read them where they are.
    InPlace(SecondPassInput),
    /// Some of these rows are compressed, in CPU memory.
    Compressed(Arc<[LinkColumn; 2]>, Range<u64>),
}

impl Tuples {
    /// Tuples that kernels read where they are, and the share of them that is in CPU memory.
    pub(crate) fn in_place(columns: SecondPassInput, spilled_share: f64) -> Self {
        Self { columns: Columns::InPlace(columns), spilled_share }
    }

    /// Keys and values in CPU memory, `count` of each.
    ///
    /// # Errors
    /// If there are fewer, or kernels cannot read them.
    pub(crate) fn staged(columns: [LinkColumn; 2], count: u64) -> Result<Self> {
        let columns = if columns.iter().any(LinkColumn::is_compressed) {
            Columns::Compressed(Arc::new(columns), 0..count)
        } else {
            let of = |column: LinkColumn| SharedView::new(Arc::new(column.into_buffer()), 0, count * KEY_BYTES);
            let [keys, values] = columns.map(of);
            Columns::InPlace(SecondPassInput { keys: keys?, values: values?, value_bytes: 8, is_spilled: true })
        };
        Ok(Self { columns, spilled_share: 1.0 })
    }

    /// The number of tuples.
    pub(super) fn count(&self) -> u64 {
        match &self.columns {
            Columns::InPlace(columns) => columns.tuples(),
            Columns::Compressed(_, rows) => rows.end - rows.start,
        }
    }

    /// Queues the second pass over all tuples, and counts the bytes that cross the link. What is compressed is decompressed first, and then
    /// this waits for the pass, so that only one partition has memory for that.
    pub(super) fn refine(
        &self,
        request: &DeviceRequest,
        pass: &mut SecondPass<'_>,
        kernels: &Kernels,
        radix: Radix,
    ) -> Result<Queued<FinePartitions>> {
        let _refining = debug_span!(SECOND_PASS, rows = self.count()).entered();
        let (columns, rows) = match &self.columns {
            Columns::InPlace(columns) => {
                let fine = pass.queue(kernels, columns, radix)?;
                let bytes = (columns.tuples() * (KEY_BYTES + columns.value_bytes)) as f64 * self.spilled_share;
                request.observer.add(DeviceCount::LinkBytes, bytes as u64);
                return Ok(fine);
            }
            Columns::Compressed(columns, rows) => (columns, rows),
        };
        let cascade = &request.gpu.cascade;
        let [keys, values] = columns.each_ref().map(|column| column.to_gpu(cascade, pass.stream(), rows.clone()));
        let input = SecondPassInput { keys: keys?, values: values?, value_bytes: 8, is_spilled: false };
        let read = columns.iter().map(|column| column.link_bytes(rows.clone())).sum();
        request.observer.add(DeviceCount::LinkBytes, read);
        request.observer.add(DeviceCount::SavedLinkBytes, (self.count() * 2 * KEY_BYTES).saturating_sub(read));
        let fine = pass.queue(kernels, &input, radix)?;
        drop(input);
        fine.settle();
        Ok(fine)
    }

    /// The `count` tuples from `first` on.
    pub(super) fn part(&self, [first, count]: [u64; 2]) -> Result<Self> {
        let columns = match &self.columns {
            Columns::InPlace(SecondPassInput { keys, values, value_bytes, is_spilled }) => {
                Columns::InPlace(SecondPassInput {
                    keys: keys.slice(first * KEY_BYTES, count * KEY_BYTES)?,
                    values: values.slice(first * value_bytes, count * value_bytes)?,
                    value_bytes: *value_bytes,
                    is_spilled: *is_spilled,
                })
            }
            Columns::Compressed(columns, rows) => {
                Columns::Compressed(Arc::clone(columns), rows.start + first..rows.start + first + count)
            }
        };
        Ok(Self { columns, spilled_share: self.spilled_share })
    }
}
