//! Conditions on a column with a dictionary: each value is evaluated once.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, DictionaryArray, PrimitiveArray, downcast_dictionary_array};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{ArrowDictionaryKeyType, ArrowNativeType};
use datafusion::common::Result;

/// A column with fewer rows for each value of its dictionary is evaluated row by row.
const ROWS_PER_VALUE: usize = 2;

/// Which rows of a column pass a condition on it, which may be asked of values that no row has. `None` without a dictionary, or if it
/// has many values for the rows.
///
/// Arrow searches for patterns and in lists once for each value, but compares each row.
pub(super) fn passing_by_value(
    column: &ArrayRef,
    passing: impl FnOnce(ArrayRef) -> Result<BooleanBuffer>,
) -> Result<Option<BooleanBuffer>> {
    downcast_dictionary_array!(
        column => with_keys(column, passing),
        _ => Ok(None)
    )
}

fn with_keys<K: ArrowDictionaryKeyType>(
    column: &DictionaryArray<K>,
    passing: impl FnOnce(ArrayRef) -> Result<BooleanBuffer>,
) -> Result<Option<BooleanBuffer>> {
    let values = column.values();
    if values.len().saturating_mul(ROWS_PER_VALUE) > column.len() {
        return Ok(None);
    }
    // Each value, and behind them a null. A value whose number is no key is in no row.
    let keys = (0..values.len()).map(<K as ArrowPrimitiveType>::Native::from_usize).chain([None]);
    let each = DictionaryArray::try_new(keys.collect::<PrimitiveArray<K>>(), Arc::clone(values))?;
    let of_values = passing(Arc::new(each))?;
    let (keys, null) = (column.keys(), of_values.value(values.len()));
    let of_row = |row: usize| if keys.is_null(row) { null } else { of_values.value(keys.value(row).as_usize()) };
    Ok(Some(BooleanBuffer::collect_bool(column.len(), of_row)))
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int8Array, StringArray};
    use arrow::datatypes::Int8Type;

    use super::*;

    #[test]
    fn each_value_is_evaluated_once() {
        let values = StringArray::from(vec![Some("a"), Some("b"), None, Some("in no row")]);
        let keys = Int8Array::from_iter((0..100).map(|row: i8| (row % 5 != 4).then_some(row % 3)));
        let column: ArrayRef = Arc::new(DictionaryArray::new(keys, Arc::new(values)));
        let column = column.slice(1, 90);
        // Nulls, in the dictionary or not, and one of the values.
        let passing = |values: ArrayRef| {
            let values = values.as_dictionary::<Int8Type>().downcast_dict::<StringArray>().unwrap();
            let values: Vec<_> = values.into_iter().collect();
            assert_eq!(values, [Some("a"), Some("b"), None, Some("in no row"), None]);
            Ok(values.iter().map(|value| *value != Some("a")).collect())
        };
        let found = passing_by_value(&column, passing).unwrap().unwrap();
        assert_eq!(found, (1..91).map(|row| row % 5 == 4 || row % 3 != 0).collect::<BooleanBuffer>());
    }

    #[test]
    fn rows_are_evaluated_where_values_are_not_fewer() {
        let unknown = |_: ArrayRef| -> Result<BooleanBuffer> { panic!("evaluated") };
        let values = StringArray::from_iter_values((0..10).map(|value| value.to_string()));
        let keys = Int8Array::from_iter_values((0..19).map(|row| row % 10));
        let dictionary: ArrayRef = Arc::new(DictionaryArray::new(keys, Arc::new(values.clone())));
        let plain: ArrayRef = Arc::new(values);
        for column in [&dictionary, &plain, &plain.slice(0, 0)] {
            assert!(passing_by_value(column, unknown).unwrap().is_none());
        }
    }
}
