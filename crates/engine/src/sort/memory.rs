//! The memory of one partition of a sort.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion::common::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::spill::get_record_batch_memory_size;

use crate::size::Size;

/// The memory limit divided by this number is the size of a batch of a spilled run.
const BLOCKS: usize = 2048;

/// The minimum and the maximum target size of a batch of a spilled run, in bytes.
const LEAST_BLOCK: usize = 16 << 10;
const MOST_BLOCK: usize = 1 << 20;

/// How many blocks are sorted at a time: the size of a run in memory.
const RUN_BLOCKS: usize = 8;

/// The most bytes of a run in memory: a few large runs merge faster, but take longer to sort.
const MOST_RUN: usize = 1 << 20;

/// The size of the working buffers in blocks, without those of files. They hold a run being concatenated and sorted, or a
/// merge of two runs with rows of usual widths.
const WORKING_BLOCKS: usize = 3 * RUN_BLOCKS;

/// Memory for reading a spilled file besides its batches: DataFusion reads pieces of 128 KiB.
pub(super) const FILE_BYTES: usize = 128 << 10;

/// The fewest runs that can be merged. The working buffers have room for them.
pub(super) const FEWEST_MERGED: usize = 2;

/// Bytes that a value of variable width adds to a key besides its own: markers and the rest of its last block.
const KEY_OVERHEAD: usize = 10;

/// Bytes of the offset that addresses a row among the keys.
const KEY_OFFSET: usize = size_of::<usize>();

/// The block sizes of a sort, derived from the memory limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// The bytes of a batch in a spilled run.
    pub block: usize,
    /// The bytes that are sorted at a time.
    pub run: usize,
}

impl Sizes {
    pub fn of(pool: &Arc<dyn MemoryPool>) -> Self {
        let limit = match pool.memory_limit() {
            MemoryLimit::Finite(limit) => limit,
            MemoryLimit::Infinite | MemoryLimit::Unknown => usize::MAX,
        };
        let block = (limit / BLOCKS).clamp(LEAST_BLOCK, MOST_BLOCK);
        Self { block, run: (RUN_BLOCKS * block).min(MOST_RUN) }
    }
}

/// The reservations of one partition of a sort.
#[derive(Debug)]
pub(super) struct SortMemory {
    /// Rows and their keys, which can move to disk.
    pub state: MemoryReservation,
    /// Memory that the sort needs to spill the rows and to merge them.
    working: MemoryReservation,
}

impl SortMemory {
    pub fn new(pool: &Arc<dyn MemoryPool>, partition: usize) -> Self {
        let name = format!("SpillingSort[{partition}]");
        Self {
            working: MemoryConsumer::new(format!("{name} working buffers")).register(pool),
            state: MemoryConsumer::new(name).with_can_spill(true).register(pool),
        }
    }

    /// Makes the working buffers at least `bytes` large, and never smaller than what usual rows need.
    ///
    /// # Errors
    /// The errors of the pool, with a note on what a sort needs.
    pub fn secure_working_buffers(&self, sizes: Sizes, bytes: usize) -> Result<()> {
        let bytes = bytes.max(WORKING_BLOCKS * sizes.block + FEWEST_MERGED * FILE_BYTES);
        let Some(missing) = bytes.checked_sub(self.working.size()).filter(|missing| *missing > 0) else {
            return Ok(());
        };
        self.working.try_grow(missing).map_err(|error| {
            error.context(format!(
                "A sort needs at least {} for each of its partitions; raise the memory limit, or lower the number of partitions \
                 with --threads or datafusion.execution.target_partitions",
                Size(bytes)
            ))
        })
    }

    /// Returns the part of the working buffers that the last merge does not need.
    pub fn keep_working_buffers(&self, bytes: usize) {
        self.working.shrink(self.working.size().saturating_sub(bytes));
    }
}

/// The bytes for merging a batch: its rows, and their keys unless the merge compares them in place.
pub(super) fn merged_bytes(ordering: &LexOrdering, batch: &RecordBatch) -> Result<usize> {
    let mut bytes = get_record_batch_memory_size(batch);
    if ordering.len() == 1 && is_compared_in_place(&ordering[0].expr.data_type(&batch.schema())?) {
        return Ok(bytes);
    }
    bytes += batch.num_rows() * KEY_OFFSET;
    for key in ordering {
        bytes += encoded_bytes(&key.expr.evaluate(batch)?.into_array(batch.num_rows())?)?;
    }
    Ok(bytes)
}

/// Whether DataFusion merges by a single key of this type without encoding it.
fn is_compared_in_place(data_type: &DataType) -> bool {
    data_type.is_primitive()
        || matches!(
            data_type,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Binary | DataType::LargeBinary
        )
}

/// The most bytes that the values of a key take when rows are encoded.
fn encoded_bytes(values: &ArrayRef) -> Result<usize> {
    let data_type = values.data_type();
    let is_variable = matches!(data_type, DataType::Utf8View | DataType::BinaryView) || is_compared_in_place(data_type);
    if let Some(width) = data_type.primitive_width() {
        return Ok(values.len() * (width + 1));
    }
    if is_variable {
        // Blocks of 8 bytes, later of 32, with a byte behind each.
        return Ok(values.get_buffer_memory_size() / 2 * 3 + values.len() * KEY_OVERHEAD);
    }
    // The encoded size of nested and dictionary values is known only when they are encoded.
    let converter = RowConverter::new(vec![SortField::new(data_type.clone())])?;
    Ok(converter.convert_columns(&[Arc::clone(values)])?.size())
}
