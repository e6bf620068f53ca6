//! Rows of several batches put together into one.
//!
//! Arrow's kernels do it, but for columns of dictionaries: where the dictionaries differ, those merge them by a cache
//! that may keep a value twice, and then run out of keys of a narrow type that has keys enough. Such columns are
//! joined by their values.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{can_cast_types, cast, concat, interleave};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow_select::dictionary::garbage_collect_any_dictionary;

use crate::error::{JoinError, Result};

/// The given rows, each named by its batch and its number in it.
pub(crate) fn interleave_batches(batches: &[RecordBatch], rows: &[(usize, usize)]) -> Result<RecordBatch> {
    let schema = batches[0].schema();
    let columns = (0..schema.fields().len())
        .map(|column| {
            let arrays: Vec<_> = batches.iter().map(|batch| Arc::clone(batch.column(column))).collect();
            let column = combine(&arrays, |arrays| interleave(arrays, rows))?;
            drop_unused_values(column, rows.len())
        })
        .collect::<Result<Vec<_>>>()?;
    batch_of(&schema, columns, rows.len())
}

/// All rows of all batches; each column of the input is freed as soon as it has been copied.
pub(crate) fn concat_batches(schema: &SchemaRef, batches: Vec<RecordBatch>) -> Result<RecordBatch> {
    if batches.is_empty() {
        return Ok(RecordBatch::new_empty(Arc::clone(schema)));
    }
    let rows = batches.iter().map(RecordBatch::num_rows).sum();
    let mut columns: Vec<Vec<ArrayRef>> = vec![Vec::with_capacity(batches.len()); schema.fields().len()];
    for batch in batches {
        for (column, array) in columns.iter_mut().zip(batch.columns()) {
            column.push(Arc::clone(array));
        }
    }
    let columns = columns
        .into_iter()
        .map(|arrays| match arrays.as_slice() {
            [array] => Ok(Arc::clone(array)),
            arrays => combine(arrays, concat),
        })
        .collect::<Result<Vec<_>>>()?;
    batch_of(schema, columns, rows)
}

fn batch_of(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

fn combine(
    arrays: &[ArrayRef],
    kernel: impl Fn(&[&dyn Array]) -> std::result::Result<ArrayRef, ArrowError>,
) -> Result<ArrayRef> {
    let run = |arrays: &[ArrayRef]| kernel(&arrays.iter().map(|array| array.as_ref()).collect::<Vec<_>>());
    let data_type = arrays[0].data_type();
    let DataType::Dictionary(_, value_type) = data_type else { return Ok(run(arrays)?) };
    let dictionary = arrays[0].as_any_dictionary().values().to_data();
    let is_shared = |array: &ArrayRef| array.as_any_dictionary().values().to_data().ptr_eq(&dictionary);
    if arrays.iter().all(is_shared) || !can_cast_types(value_type, data_type) {
        return Ok(run(arrays)?);
    }
    let values = arrays.iter().map(|array| cast(array, value_type)).collect::<std::result::Result<Vec<_>, _>>()?;
    cast(&run(&values)?, data_type).map_err(|error| {
        JoinError::Limit(format!(
            "A join brings more different values together than a column of type {data_type} has keys for; cast the \
             column to {value_type}, or to a dictionary with wider keys ({error})"
        ))
    })
}

/// A dictionary with more values than there are rows costs more than the rows, in memory and in a file.
fn drop_unused_values(column: ArrayRef, rows: usize) -> Result<ArrayRef> {
    match column.as_any_dictionary_opt() {
        Some(dictionary) if dictionary.values().len() > rows => Ok(garbage_collect_any_dictionary(dictionary)?),
        _ => Ok(column),
    }
}

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
        let rows: Vec<_> = (0..120).map(|row| (row % 50, row % 100)).collect();
        let some = interleave_batches(&batches, &rows).unwrap();
        let all = concat_batches(&batches[0].schema(), batches.clone()).unwrap();
        let strings = |array: &ArrayRef| cast(array, &DataType::Utf8).unwrap().as_string::<i32>().clone();
        let (some, all) = (strings(some.column(0)), strings(all.column(0)));
        for (number, (of, row)) in rows.iter().enumerate() {
            assert_eq!(some.value(number), format!("value {}", (row + of) % 120));
        }
        assert_eq!((0..5_000).filter(|row| all.value(*row) == "value 7").count(), 42);
    }

    #[test]
    fn too_many_values_are_an_error_that_says_what_to_do() {
        let batches = [dictionary(0..100), dictionary(100..200)];
        let rows: Vec<_> = (0..200).map(|row| (row / 100, row % 100)).collect();
        let error = interleave_batches(&batches, &rows).unwrap_err().to_string();
        assert!(error.contains("Dictionary(Int8, Utf8)") && error.contains("cast the column"), "{error}");
    }

    #[test]
    fn few_rows_do_not_carry_a_large_dictionary_along() {
        let values: ArrayRef = Arc::new(StringArray::from_iter_values((0..1_000).map(|value| format!("value {value}"))));
        let keys = |from: i32| Int32Array::from_iter_values((0..10).map(|key| from + key % 3));
        let batches = [0, 500].map(|from| batch(Arc::new(DictionaryArray::new(keys(from), Arc::clone(&values)))));
        let rows: Vec<_> = (0..20).map(|row| (row % 2, row / 2)).collect();
        let few = interleave_batches(&batches, &rows).unwrap();
        assert_eq!(few.column(0).as_any_dictionary().values().len(), 6);
    }

    #[test]
    fn batches_without_columns_keep_their_rows() {
        let schema = Arc::new(Schema::empty());
        let two = batch_of(&schema, vec![], 2).unwrap();
        assert_eq!(interleave_batches(&[two.clone()], &[(0, 1), (0, 0), (0, 0)]).unwrap().num_rows(), 3);
        assert_eq!(concat_batches(&schema, vec![two.clone(), two]).unwrap().num_rows(), 4);
    }

    #[test]
    fn no_batches_make_an_empty_one() {
        let schema = Arc::new(Schema::new(vec![Field::new("c", DataType::Int64, true)]));
        assert_eq!(concat_batches(&schema, vec![]).unwrap(), RecordBatch::new_empty(schema));
        let numbers = batch(Arc::new(Int64Array::from(vec![1, 2])));
        assert_eq!(concat_batches(&numbers.schema(), vec![numbers.clone()]).unwrap(), numbers);
    }
}
