//! The memory of one partition of a sort.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::spill::get_record_batch_memory_size;

use crate::size::Size;

/// A batch of a spilled run takes this part of the memory limit, as a divisor.
const BLOCKS: usize = 2048;

/// The least and the most bytes that a batch of a spilled run is made to take.
const LEAST_BLOCK: usize = 16 << 10;
const MOST_BLOCK: usize = 1 << 20;

/// How many blocks are sorted at a time: the size of a run in memory.
const RUN_BLOCKS: usize = 8;

/// The most bytes of a run in memory: few large ones merge faster, and take longer to sort.
const MOST_RUN: usize = 1 << 20;

/// What the working buffers are, in blocks, beside those of files: those of a run that is put together and sorted, or
/// those of a merge of two runs of rows of usual widths.
const WORKING_BLOCKS: usize = 3 * RUN_BLOCKS;

/// What reading a spilled file takes beside its batches: DataFusion reads pieces of 128 KiB.
pub(super) const FILE_BYTES: usize = 128 << 10;

/// The fewest runs that can be merged, for which the working buffers have room.
pub(super) const FEWEST_MERGED: usize = 2;

/// What a row of variable width takes in a key beside its bytes: markers and the rest of its last block.
const KEY_OVERHEAD: usize = 10;

/// What addresses a row among the keys.
const KEY_OFFSET: usize = size_of::<usize>();

/// The sizes in which a sort works, from the memory limit.
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
    /// What the sort needs to move them there and to merge them.
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
    /// What the pool refuses with, and what a sort needs.
    pub fn secure_working_buffers(&self, sizes: Sizes, bytes: usize) -> Result<()> {
        let bytes = bytes.max(WORKING_BLOCKS * sizes.block + FEWEST_MERGED * FILE_BYTES);
        let Some(missing) = bytes.checked_sub(self.working.size()).filter(|missing| *missing > 0) else {
            return Ok(());
        };
        self.working.try_grow(missing).map_err(|error| explain(error, bytes))
    }

    /// Gives back what the last merge does not need of the working buffers.
    pub fn keep_working_buffers(&self, bytes: usize) {
        self.working.shrink(self.working.size().saturating_sub(bytes));
    }
}

fn explain(error: DataFusionError, bytes: usize) -> DataFusionError {
    error.context(format!(
        "A sort needs at least {} for each of its partitions; raise the memory limit, or lower the number of partitions \
         with --threads or datafusion.execution.target_partitions",
        Size(bytes)
    ))
}

/// The bytes that merging takes for a batch: its rows, and their keys where they are not compared in place.
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
    // What nested values and those of dictionaries become is seen when they are encoded.
    let converter = RowConverter::new(vec![SortField::new(data_type.clone())])?;
    Ok(converter.convert_columns(&[Arc::clone(values)])?.size())
}
