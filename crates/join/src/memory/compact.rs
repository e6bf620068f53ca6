//! Batches that hold no more memory than their rows need.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, GenericByteViewArray, MutableArrayData, RecordBatch, make_array,
};
use arrow::datatypes::{ByteViewType, DataType};
use arrow::error::ArrowError;

use crate::error::Result;

/// A column is copied when it holds more than this many times the memory that its rows need.
const WORTH_COPYING: usize = 2;

/// Copies the columns that keep much more memory alive than their rows need: slices of larger arrays, and views into mostly
/// unused buffers.
pub fn compact(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().map(compact_column).collect::<Result<Vec<_>, _>>()?;
    // A batch without columns has only its row count.
    if columns.is_empty() { Ok(batch) } else { RecordBatch::try_new(batch.schema(), columns) }
}

/// Like `compact`, for one column.
pub fn compact_column(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match array.data_type() {
        DataType::Utf8View => compact_views(array.as_string_view()),
        DataType::BinaryView => compact_views(array.as_binary_view()),
        DataType::List(_)
        | DataType::LargeList(_)
        | DataType::FixedSizeList(_, _)
        | DataType::Struct(_)
        | DataType::Map(_, _) => {
            // Finding out how much of its children a nested array uses is expensive, so it is always copied.
            let data = copy(&array.to_data())?;
            let children = data
                .child_data()
                .iter()
                .map(|child| compact_column(&make_array(child.clone())).map(|child| child.to_data()))
                .collect::<Result<Vec<_>, _>>()?;
            Ok(make_array(data.into_builder().child_data(children).build()?))
        }
        // The values of a dictionary are shared between batches; runs and unions are rare. They are not copied.
        DataType::Dictionary(_, _)
        | DataType::RunEndEncoded(_, _)
        | DataType::Union(_, _)
        | DataType::ListView(_)
        | DataType::LargeListView(_) => Ok(Arc::clone(array)),
        _ => {
            let data = array.to_data();
            let needed = data.get_slice_memory_size()?;
            let held = data.get_buffer_memory_size();
            Ok(if is_worth_copying(held, needed) { make_array(copy(&data)?) } else { Arc::clone(array) })
        }
    }
}

fn compact_views<T: ByteViewType + ?Sized>(array: &GenericByteViewArray<T>) -> Result<ArrayRef, ArrowError>
where
    GenericByteViewArray<T>: Clone,
{
    let held: usize = array.data_buffers().iter().map(|buffer| buffer.capacity()).sum();
    let mut array = array.clone();
    if is_worth_copying(held, array.total_buffer_bytes_used()) {
        array = array.gc();
    }
    let views = array.views().inner();
    if is_worth_copying(views.capacity(), views.len()) {
        return Ok(make_array(copy(&array.to_data())?));
    }
    Ok(Arc::new(array))
}

/// Small buffers are padded, so copying them does not pay.
fn is_worth_copying(held: usize, needed: usize) -> bool {
    held > 1024 && held / WORTH_COPYING > needed
}

/// Copies exactly the rows of an array; the buffers behind views and the values of dictionaries stay shared.
fn copy(data: &ArrayData) -> Result<ArrayData, ArrowError> {
    let mut rows = MutableArrayData::new(vec![data], false, data.len());
    rows.try_extend(0, 0, data.len())?;
    Ok(rows.freeze())
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        ArrayRef, DictionaryArray, Int32Array, Int64Array, ListArray, StringArray, StringViewArray, StructArray,
    };
    use arrow::datatypes::{Field, Int32Type};

    use super::super::footprint::HeldMemory;
    use super::*;

    fn batch(column: ArrayRef) -> RecordBatch {
        RecordBatch::try_from_iter([("c", column)]).unwrap()
    }

    /// The memory of ten rows out of the middle, before and after compaction; checks that the rows stay the same.
    fn ten_rows(column: ArrayRef) -> (usize, usize) {
        let slice = batch(column.slice(5_000, 10));
        let compacted = compact(slice.clone()).unwrap();
        assert_eq!(slice, compacted);
        (HeldMemory::default().add(&slice), HeldMemory::default().add(&compacted))
    }

    #[test]
    fn slices_are_cut_out_of_their_parents() {
        let numbers = Int64Array::from_iter((0..10_000).map(|row| (row % 3 > 0).then_some(row)));
        let strings: Vec<String> = (0..10_000).map(|row| format!("a string that is not inlined {row}")).collect();
        let views = StringViewArray::from_iter_values(&strings);
        let views: ArrayRef = Arc::new(views);
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>((0..10_000).map(|row| Some(vec![Some(row); 3])));
        let field = Arc::new(Field::new("view", DataType::Utf8View, false));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(numbers),
            Arc::new(StringArray::from_iter_values(&strings)),
            Arc::clone(&views),
            Arc::new(list),
            Arc::new(StructArray::from(vec![(field, views)])),
        ];
        for column in columns {
            let kind = column.data_type().clone();
            let (before, after) = ten_rows(column);
            assert!(before > 30_000, "{kind}: {before}");
            assert!(after < 3_000, "{kind}: {after}");
        }
    }

    #[test]
    fn whole_arrays_are_not_copied() {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10_000));
        let compacted = compact(batch(Arc::clone(&column))).unwrap();
        assert_eq!(compacted.column(0).to_data().buffers()[0].as_ptr(), column.to_data().buffers()[0].as_ptr());
    }

    #[test]
    fn shared_buffers_count_once() {
        let values: ArrayRef = Arc::new(StringArray::from_iter_values((0..1000).map(|value| format!("value {value}"))));
        let mut memory = HeldMemory::default();
        let mut add = |from: i32| {
            let keys = Int32Array::from_iter_values(from..from + 10);
            memory.add(&batch(Arc::new(DictionaryArray::new(keys, Arc::clone(&values)))))
        };
        assert!(add(0) > 10_000);
        assert!(add(10) < 1_000);
    }

    #[test]
    fn batches_without_columns_keep_their_rows() {
        let schema = Arc::new(arrow::datatypes::Schema::empty());
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(7));
        let rows = RecordBatch::try_new_with_options(schema, vec![], &options).unwrap();
        assert_eq!(compact(rows).unwrap().num_rows(), 7);
    }
}
