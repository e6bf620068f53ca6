//! Concatenates and redistributes the rows of several batches.
//!
//! Arrow's kernels do this, except for dictionary columns. If the dictionaries differ, the kernels merge them with a cache that
//! may keep a value twice, and then run out of keys of a narrow type that has enough keys. Such columns are concatenated by
//! their values.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array, make_array};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::compute::{can_cast_types, cast, concat, take};
use arrow::datatypes::{DataType, SchemaRef};
use arrow_select::dictionary::garbage_collect_any_dictionary;
use bytes::Bytes;
use overspill_machine::memory::{HUGE, PageVec, Plain};

use crate::error::{JoinError, Result};
use crate::parallel::{in_parallel, split};

/// Distributes the rows of all batches to pieces. For each piece, returns a batch of the rows that it numbers; numbers count
/// through all batches. Frees each column of the input once it has been distributed.
///
/// Works column by column: the rows of a piece are far apart, and this way they come from no more memory than fits a cache.
pub fn scatter_batches(
    schema: &SchemaRef,
    batches: Vec<RecordBatch>,
    pieces: &[UInt32Array],
) -> Result<Vec<RecordBatch>> {
    let mut dealt = vec![Vec::with_capacity(schema.fields().len()); pieces.len()];
    for arrays in columns_of(schema, batches) {
        let column = concat_arrays(&arrays, 1)?;
        drop(arrays);
        for (columns, rows) in dealt.iter_mut().zip(pieces) {
            columns.push(drop_unused_values(take(&column, rows, None)?)?);
        }
    }
    dealt.into_iter().zip(pieces).map(|(columns, rows)| batch_of(schema, columns, rows.len())).collect()
}

/// The rows of each partition, one partition after the other and each in their order, and the end of each partition (counting sort).
/// Rows with the number `partitions` are in none.
pub fn sort_by_number(numbers: &[u16], partitions: usize) -> (ScalarBuffer<u32>, Vec<usize>) {
    let mut ends = vec![0; partitions + 1];
    for number in numbers {
        ends[usize::from(*number)] += 1;
    }
    let mut start = 0;
    for end in &mut ends {
        start += std::mem::replace(end, start);
    }
    let mut rows = vec![0; numbers.len()];
    for (row, number) in numbers.iter().enumerate() {
        let next = &mut ends[usize::from(*number)];
        rows[*next] = row as u32;
        *next += 1;
    }
    ends.pop();
    (rows.into(), ends)
}

/// Concatenates all rows of all batches on `threads` threads. Frees each column of the input once it has been copied.
pub fn concat_batches(schema: &SchemaRef, batches: Vec<RecordBatch>, threads: usize) -> Result<RecordBatch> {
    let rows = batches.iter().map(RecordBatch::num_rows).sum();
    if rows == 0 {
        return Ok(RecordBatch::new_empty(Arc::clone(schema)));
    }
    let columns = columns_of(schema, batches);
    let columns = columns.into_iter().map(|arrays| concat_arrays(&arrays, threads)).collect::<Result<Vec<_>>>()?;
    batch_of(schema, columns, rows)
}

/// For each column, its arrays in all batches.
fn columns_of(schema: &SchemaRef, batches: Vec<RecordBatch>) -> Vec<Vec<ArrayRef>> {
    let mut columns: Vec<Vec<ArrayRef>> = vec![Vec::with_capacity(batches.len()); schema.fields().len()];
    for batch in batches {
        for (column, array) in columns.iter_mut().zip(batch.columns()) {
            column.push(Arc::clone(array));
        }
    }
    columns
}

fn batch_of(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

/// Concatenates arrays of one type on `threads` threads.
pub fn concat_arrays(arrays: &[ArrayRef], threads: usize) -> Result<ArrayRef> {
    let concat = |arrays: &[ArrayRef]| concat(&arrays.iter().map(|array| array.as_ref()).collect::<Vec<_>>());
    if let [array] = arrays {
        return Ok(Arc::clone(array));
    }
    let data_type = arrays[0].data_type();
    if let Some(width) = data_type.primitive_width()
        && arrays.iter().all(|array| array.null_count() == 0)
    {
        let bytes = arrays.iter().map(|array| array.len() * width).sum();
        if bytes >= HUGE {
            return concat_values(arrays, width, bytes, threads);
        }
    }
    let DataType::Dictionary(_, value_type) = data_type else { return Ok(concat(arrays)?) };
    let dictionary = arrays[0].as_any_dictionary().values().to_data();
    let is_shared = |array: &ArrayRef| array.as_any_dictionary().values().to_data().ptr_eq(&dictionary);
    if arrays.iter().all(is_shared) || !can_cast_types(value_type, data_type) {
        return Ok(concat(arrays)?);
    }
    let values = arrays.iter().map(|array| cast(array, value_type)).collect::<Result<Vec<_>, _>>()?;
    cast(&concat(&values)?, data_type).map_err(|error| {
        JoinError::Limit(format!(
            "A join brings more different values together than a column of type {data_type} has keys for; cast the \
             column to {value_type}, or to a dictionary with wider keys ({error})"
        ))
    })
}

/// Concatenates arrays of `width`-byte values without nulls into huge pages, because they will be read at random.
fn concat_values(arrays: &[ArrayRef], width: usize, bytes: usize, threads: usize) -> Result<ArrayRef> {
    let mut values = PageVec::<u8>::zeroed(bytes)?;
    let places = split(&mut values[..], arrays.iter().map(|array| array.len() * width));
    in_parallel(threads, arrays.iter().zip(places).collect(), |(array, place): (&ArrayRef, &mut [u8])| {
        let data = array.to_data();
        let from = data.offset() * width;
        place.copy_from_slice(&data.buffers()[0].as_slice()[from..from + place.len()]);
    });
    array_of(arrays[0].data_type(), bytes / width, into_buffer(values))
}

fn into_buffer<T: Plain + Copy + Default + Send + 'static>(values: PageVec<T>) -> Buffer {
    struct Owned<T>(PageVec<T>);

    impl<T: Plain + Copy + Default> AsRef<[u8]> for Owned<T> {
        fn as_ref(&self) -> &[u8] {
            self.0.as_bytes()
        }
    }

    Buffer::from(Bytes::from_owner(Owned(values)))
}

fn array_of(data_type: &DataType, rows: usize, values: Buffer) -> Result<ArrayRef> {
    Ok(make_array(ArrayData::builder(data_type.clone()).len(rows).add_buffer(values).build()?))
}

/// Maximum columns of a batch that is reordered: a wide row costs more to move than to look up in its place.
const MAX_REORDERED: usize = 4;

/// Rows that a thread moves at once.
const REORDERED_TOGETHER: usize = 64 << 10;

/// Whether [`reorder_batch`] supports the batch: few columns of fixed width without nulls.
pub(crate) fn can_reorder(batch: &RecordBatch) -> bool {
    let is_narrow =
        |column: &ArrayRef| matches!(column.data_type().primitive_width(), Some(4 | 8)) && column.null_count() == 0;
    batch.num_columns() <= MAX_REORDERED && batch.columns().iter().all(is_narrow)
}

/// Reorders the rows of a batch. `order` has the row number plus one for each place.
pub(crate) fn reorder_batch(batch: &RecordBatch, order: &[u32], threads: usize) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(|column| {
        let data = column.to_data();
        let (buffer, rows) = (&data.buffers()[0], data.offset()..data.offset() + data.len());
        let values = match column.data_type().primitive_width() {
            Some(4) => into_buffer(reorder(&buffer.typed_data::<u32>()[rows], order, threads)?),
            _ => into_buffer(reorder(&buffer.typed_data::<u64>()[rows], order, threads)?),
        };
        array_of(column.data_type(), order.len(), values)
    });
    batch_of(&batch.schema(), columns.collect::<Result<_>>()?, order.len())
}

fn reorder<T: Plain + Copy + Default + Send + Sync>(values: &[T], order: &[u32], threads: usize) -> Result<PageVec<T>> {
    let mut reordered = PageVec::<T>::zeroed(order.len())?;
    let tasks = reordered.chunks_mut(REORDERED_TOGETHER).zip(order.chunks(REORDERED_TOGETHER)).collect();
    in_parallel(threads, tasks, |(places, order): (&mut [T], &[u32])| {
        for (place, row) in places.iter_mut().zip(order) {
            *place = values[*row as usize - 1];
        }
    });
    Ok(reordered)
}

/// Drops the unused values of a dictionary with more values than rows: they cost more than the rows, in memory and in a file.
fn drop_unused_values(column: ArrayRef) -> Result<ArrayRef> {
    match column.as_any_dictionary_opt() {
        Some(dictionary) if dictionary.values().len() > column.len().max(FEW_VALUES) => {
            Ok(garbage_collect_any_dictionary(dictionary)?)
        }
        _ => Ok(column),
    }
}

/// Dictionaries of at most this many values stay as they are, because their keys may have 8 bits: such keys have little room
/// for values that several dictionaries share.
const FEW_VALUES: usize = 1 << 8;

#[cfg(test)]
mod tests {
    use arrow::array::{DictionaryArray, Int32Array, Int64Array, StringArray};
    use arrow::datatypes::{Field, Int8Type, Schema};

    use super::*;

    fn batch(column: ArrayRef) -> RecordBatch {
        RecordBatch::try_from_iter([("c", column)]).unwrap()
    }

    /// A batch with a dictionary of its own that maps each of the values in turn.
    fn dictionary(values: impl Iterator<Item = usize>) -> RecordBatch {
        let values: Vec<String> = values.map(|value| format!("value {value}")).collect();
        let array: DictionaryArray<Int8Type> = values.iter().map(|value| Some(value.as_str())).collect();
        batch(Arc::new(array))
    }

    #[test]
    fn different_dictionaries_need_only_keys_for_the_values_they_have_together() {
        let batches: Vec<_> = (0..50).map(|number| dictionary((0..100).map(|value| (value + number) % 120))).collect();
        let schema = batches[0].schema();
        let pieces = [UInt32Array::from_iter_values((0..5_000).step_by(7)), UInt32Array::from_iter_values([4_999, 0])];
        let dealt = scatter_batches(&schema, batches.clone(), &pieces).unwrap();
        let all = concat_batches(&schema, batches, 1).unwrap();
        let strings = |batch: &RecordBatch| cast(batch.column(0), &DataType::Utf8).unwrap().as_string::<i32>().clone();
        let all = strings(&all);
        for (batch, rows) in dealt.iter().zip(&pieces) {
            let dealt = strings(batch);
            assert_eq!(dealt.len(), rows.len());
            for (number, row) in rows.values().iter().enumerate() {
                assert_eq!(dealt.value(number), format!("value {}", (row / 100 + row % 100) % 120));
                assert_eq!(dealt.value(number), all.value(*row as usize));
            }
        }
    }

    #[test]
    fn too_many_values_are_an_error_that_says_what_to_do() {
        let batches = vec![dictionary(0..100), dictionary(100..200)];
        let error = concat_batches(&batches[0].schema(), batches, 1).unwrap_err().to_string();
        assert!(error.contains("Dictionary(Int8, Utf8)") && error.contains("cast the column"), "{error}");
    }

    #[test]
    fn few_rows_do_not_carry_a_large_dictionary_along() {
        let values: ArrayRef =
            Arc::new(StringArray::from_iter_values((0..1_000).map(|value| format!("value {value}"))));
        let keys = |from: i32| Int32Array::from_iter_values((0..10).map(|key| from + key % 3));
        let batches = [0, 500].map(|from| batch(Arc::new(DictionaryArray::new(keys(from), Arc::clone(&values)))));
        let rows = UInt32Array::from_iter_values(0..20);
        let few = scatter_batches(&batches[0].schema(), batches.to_vec(), &[rows]).unwrap();
        assert_eq!(few[0].column(0).as_any_dictionary().values().len(), 6);
    }

    #[test]
    fn batches_without_columns_keep_their_rows() {
        let schema = Arc::new(Schema::empty());
        let two = batch_of(&schema, vec![], 2).unwrap();
        let rows = UInt32Array::from(vec![1, 0, 0]);
        assert_eq!(scatter_batches(&schema, vec![two.clone()], &[rows]).unwrap()[0].num_rows(), 3);
        assert_eq!(concat_batches(&schema, vec![two.clone(), two], 2).unwrap().num_rows(), 4);
    }

    #[test]
    fn no_batches_make_an_empty_one() {
        let schema = Arc::new(Schema::new(vec![Field::new("c", DataType::Int64, true)]));
        assert_eq!(concat_batches(&schema, vec![], 1).unwrap(), RecordBatch::new_empty(schema));
        let numbers = batch(Arc::new(Int64Array::from(vec![1, 2])));
        assert_eq!(concat_batches(&numbers.schema(), vec![numbers.clone()], 2).unwrap(), numbers);
    }
}
