//! The columns of TPC-H that are integers.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Date32Type, Decimal128Type, Int32Type, Int64Type};

/// Texts with at most as many different values are columns of codes.
const MOST_CODES: usize = 1000;

/// A column of integers.
pub(super) struct Column {
    /// The name of the table, a point, and that of the column.
    pub name: String,
    pub values: Values,
    /// The partition of each row is a hash of this, the key of the table.
    pub keys: Arc<Vec<i64>>,
}

/// Integers of one size.
#[derive(Debug)]
pub(super) enum Values {
    Wide(Vec<i64>),
    Narrow(Vec<i32>),
}

impl Values {
    /// The values of a column; `None` if they are no integers. Decimals are 64 bits, texts with few values their codes.
    fn of(column: &str, batches: &[RecordBatch]) -> Option<Self> {
        let kind = batches.first()?.column_by_name(column)?.data_type().clone();
        let arrays = batches.iter().filter_map(|batch| batch.column_by_name(column));
        Some(match kind {
            DataType::Int64 => {
                Self::Wide(arrays.flat_map(|array| array.as_primitive::<Int64Type>().values()).copied().collect())
            }
            DataType::Int32 => {
                Self::Narrow(arrays.flat_map(|array| array.as_primitive::<Int32Type>().values()).copied().collect())
            }
            DataType::Date32 => {
                Self::Narrow(arrays.flat_map(|array| array.as_primitive::<Date32Type>().values()).copied().collect())
            }
            DataType::Decimal128(precision, _) if precision <= 18 => {
                let words = arrays.flat_map(|array| array.as_primitive::<Decimal128Type>().values());
                Self::Wide(words.map(|word| *word as i64).collect())
            }
            DataType::Utf8View => {
                let mut codes = HashMap::new();
                let mut values = vec![];
                for array in arrays {
                    for text in array.as_string_view() {
                        let next = codes.len() as i32;
                        values.push(*codes.entry(text.unwrap_or_default().to_owned()).or_insert(next));
                    }
                    if codes.len() > MOST_CODES {
                        return None;
                    }
                }
                Self::Narrow(values)
            }
            _ => return None,
        })
    }
}

/// The columns of a table that are integers. Its first column is its key.
pub(super) fn of_table(table: &str, batches: &[RecordBatch]) -> Vec<Column> {
    let Some(first) = batches.first() else { return vec![] };
    let schema = first.schema();
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let keys = match names.first().and_then(|key| Values::of(key, batches)) {
        Some(Values::Wide(keys)) => keys,
        Some(Values::Narrow(keys)) => keys.into_iter().map(i64::from).collect(),
        None => vec![],
    };
    let keys = Arc::new(keys);
    let column = |name: &String| {
        let values = Values::of(name, batches)?;
        Some(Column { name: format!("{table}.{name}"), values, keys: Arc::clone(&keys) })
    };
    names.iter().filter_map(column).collect()
}

/// The values of each partition, in the order of the rows.
pub(super) fn partitioned<T: Copy>(values: &[T], keys: &[i64], partitions: usize) -> Vec<Vec<T>> {
    if partitions <= 1 {
        return vec![values.to_vec()];
    }
    let mut parts = vec![Vec::with_capacity(values.len() / partitions * 5 / 4); partitions];
    for (value, key) in values.iter().zip(keys) {
        parts[(hash(*key as u64) % partitions as u64) as usize].push(*value);
    }
    parts
}

/// The finalizer of MurmurHash3, the hash of paper 4.
fn hash(key: u64) -> u64 {
    let key = (key ^ key >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    let key = (key ^ key >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    key ^ key >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_keep_the_order_and_lose_no_row() {
        let keys: Vec<i64> = (0..10_000).map(|row| row / 3).collect();
        let rows: Vec<i32> = (0..10_000).collect();
        let parts = partitioned(&rows, &keys, 8);
        assert!(parts.iter().all(|part| part.is_sorted() && (800..1700).contains(&part.len())));
        let mut all = parts.concat();
        all.sort_unstable();
        assert_eq!(all, rows);
        assert_eq!(partitioned(&rows, &keys, 1), [rows]);
    }
}
