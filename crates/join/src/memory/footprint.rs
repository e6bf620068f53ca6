//! The memory that batches hold, and the memory that their rows need.

use std::collections::HashSet;
use std::mem::size_of;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::DataType;

/// The memory that a set of batches keeps alive; buffers shared by several batches count once.
#[derive(Debug, Default)]
pub struct HeldMemory {
    /// Addresses of the allocations seen; they stay in use, and thus unique, as long as the batches are kept.
    seen: HashSet<usize>,
}

impl HeldMemory {
    /// Adds a batch that will be kept. Returns the bytes by which the memory grows.
    pub fn add(&mut self, batch: &RecordBatch) -> usize {
        size_of::<RecordBatch>() + batch.columns().iter().map(|column| self.add_column(column)).sum::<usize>()
    }

    /// Like [`HeldMemory::add`], for one column.
    pub(crate) fn add_column(&mut self, column: &dyn Array) -> usize {
        self.add_data(&column.to_data())
    }

    fn add_data(&mut self, data: &ArrayData) -> usize {
        let nulls = data.nulls().map(|nulls| nulls.buffer());
        let buffers: usize = data
            .buffers()
            .iter()
            .chain(nulls)
            .filter(|buffer| self.seen.insert(buffer.data_ptr().as_ptr() as usize))
            .map(|buffer| buffer.capacity())
            .sum();
        size_of::<ArrayData>() + buffers + data.child_data().iter().map(|child| self.add_data(child)).sum::<usize>()
    }
}

/// Bytes that one row needs, on average; at least 1.
///
/// This is not what the batch keeps alive: a slice may keep a larger array, and the values of a dictionary serve many batches.
pub fn row_bytes(batch: &RecordBatch) -> usize {
    let needed: usize = batch.columns().iter().map(column_bytes).sum();
    (needed / batch.num_rows().max(1)).max(1)
}

/// Bytes that the rows of a column need.
pub fn column_bytes(array: &ArrayRef) -> usize {
    const VIEW: usize = size_of::<u128>();
    match array.data_type() {
        DataType::Utf8View => array.as_string_view().total_buffer_bytes_used() + array.len() * VIEW,
        DataType::BinaryView => array.as_binary_view().total_buffer_bytes_used() + array.len() * VIEW,
        DataType::Dictionary(key, _) => {
            let values = array.as_any_dictionary().values();
            // Counts a separate value for each row, up to the number of values.
            let rows = array.len().min(values.len());
            array.len() * key.primitive_width().unwrap_or(0) + column_bytes(values) / values.len().max(1) * rows
        }
        _ => {
            let data = array.to_data();
            data.get_slice_memory_size().unwrap_or_else(|_| data.get_buffer_memory_size())
        }
    }
}

/// Adds the bytes of columns with 32-bit offsets. Returns false if a concatenation would exceed what the offsets can address.
pub fn add_offset_bytes(columns: &[ArrayRef], offsets: &mut [usize]) -> bool {
    let mut fits = true;
    for (bytes, column) in offsets.iter_mut().zip(columns) {
        if has_small_offsets(column.data_type()) {
            *bytes += column.get_array_memory_size();
            fits &= *bytes <= i32::MAX as usize;
        }
    }
    fits
}

fn has_small_offsets(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::Binary | DataType::List(_) | DataType::Map(_, _) | DataType::ListView(_) => true,
        DataType::LargeList(field) | DataType::LargeListView(field) | DataType::FixedSizeList(field, _) => {
            has_small_offsets(field.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|field| has_small_offsets(field.data_type())),
        DataType::Dictionary(_, values) => has_small_offsets(values),
        _ => false,
    }
}
