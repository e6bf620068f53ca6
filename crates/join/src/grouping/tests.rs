//! Groups against maps from values to numbers.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Date32Array, Decimal128Array, Int8Array, Int16Array, Int32Array, Int64Array,
    UInt64Array,
};
use arrow::compute::{concat, take};
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Groups, HashSplit};

/// A column of `kind`, with values of a small range around zero, or of all.
fn column(kind: usize, rows: usize, has_nulls: bool, random: &mut StdRng) -> ArrayRef {
    let spread = random.random_bool(0.5);
    let mut value = || {
        let value: i128 = if spread { random.random() } else { random.random_range(-20..20) };
        (!has_nulls || random.random_bool(0.9)).then_some(value)
    };
    let values: Vec<Option<i128>> = (0..rows).map(|_| value()).collect();
    let values = values.into_iter();
    match kind {
        0 => Arc::new(values.map(|value| Some(value? as i64)).collect::<Int64Array>()),
        1 => Arc::new(values.map(|value| Some(value? as i32)).collect::<Int32Array>()),
        2 => Arc::new(values.map(|value| Some(value? as i16)).collect::<Int16Array>()),
        3 => Arc::new(values.map(|value| Some(value? as i8)).collect::<Int8Array>()),
        4 => Arc::new(values.map(|value| Some(value? > 0)).collect::<BooleanArray>()),
        5 => Arc::new(values.map(|value| Some(value? as i32)).collect::<Date32Array>()),
        6 => Arc::new(values.map(|value| Some(value? as u64)).collect::<UInt64Array>()),
        _ => {
            let column: Decimal128Array = values.map(|value| Some(value? / 100)).collect();
            Arc::new(column.with_precision_and_scale(38, 3).unwrap())
        }
    }
}

#[test]
fn groups_are_numbered_by_their_first_rows() {
    let mut random = StdRng::seed_from_u64(7);
    let mut widths = [0; 3];
    for _ in 0..300 {
        let kinds: Vec<usize> = (0..random.random_range(1..5)).map(|_| random.random_range(0..8)).collect();
        let has_nulls: Vec<bool> = kinds.iter().map(|_| random.random_bool(0.5)).collect();
        let sample: Vec<_> = kinds.iter().map(|kind| column(*kind, 0, false, &mut random)).collect();
        let types: Vec<(DataType, bool)> =
            sample.iter().zip(&has_nulls).map(|(column, nulls)| (column.data_type().clone(), *nulls)).collect();
        let bits: usize = types
            .iter()
            .map(|(data_type, nulls)| {
                data_type.primitive_width().map_or(1, |bytes| bytes * 8) + usize::from(*nulls && types.len() > 1)
            })
            .sum();
        let Some(mut groups) = Groups::try_new(&types) else {
            assert!(bits > 192, "{types:?}");
            continue;
        };
        assert!(bits <= 192, "{types:?}");
        widths[(bits - 1) / 64] += 1;
        // Twice: groups that were taken are forgotten.
        for _ in 0..2 {
            let fields = types.iter().map(|(data_type, _)| SortField::new(data_type.clone())).collect();
            let rows_of = RowConverter::new(fields).unwrap();
            let (mut expected, mut first_rows) = (HashMap::new(), vec![]);
            for _ in 0..random.random_range(0..4) {
                let rows = random.random_range(0..3000);
                let columns: Vec<ArrayRef> = kinds
                    .iter()
                    .zip(&has_nulls)
                    .map(|(kind, nulls)| column(*kind, rows + 5, *nulls, &mut random).slice(5, rows))
                    .collect();
                let mut numbers = vec![9];
                groups.number(&columns, &mut numbers).unwrap();
                assert_eq!(numbers.len(), rows + 1);
                for (row, key) in rows_of.convert_columns(&columns).unwrap().iter().enumerate() {
                    let next = expected.len();
                    let number = *expected.entry(key.owned()).or_insert(next);
                    assert_eq!(numbers[row + 1], number, "row {row} of {types:?}");
                    if number == next {
                        first_rows.push(columns.iter().map(|column| column.slice(row, 1)).collect::<Vec<_>>());
                    }
                }
            }
            assert_eq!(groups.len(), expected.len());
            assert!(groups.bytes() >= groups.len() * 16 && groups.is_empty() == expected.is_empty());
            for (number, taken) in groups.take().unwrap().iter().enumerate() {
                let parts: Vec<&dyn Array> = first_rows.iter().map(|columns| columns[number].as_ref()).collect();
                if parts.is_empty() {
                    assert_eq!((taken.len(), taken.data_type()), (0, &types[number].0));
                } else {
                    assert_eq!(taken.as_ref(), concat(&parts).unwrap().as_ref());
                }
            }
            assert!(groups.is_empty());
        }
    }
    assert!(widths.iter().all(|tried| *tried > 20), "{widths:?}");
}

#[test]
fn other_types_are_not_packed() {
    for data_type in [DataType::Utf8, DataType::Float64, DataType::Null, DataType::Decimal256(40, 0)] {
        assert!(Groups::try_new(&[(DataType::Int32, false), (data_type, true)]).is_none());
    }
    assert!(Groups::try_new(&[]).is_none());
}

/// Values in several orders, and those whose bits are the key of empty slots.
#[test]
fn many_groups_have_their_own_numbers() {
    let mut groups = Groups::try_new(&[(DataType::Int64, true)]).unwrap();
    let values: ArrayRef = Arc::new((0..200_000).map(|value| Some(value << 20)).chain([None]).collect::<Int64Array>());
    let mut numbers = vec![];
    groups.number(&[Arc::clone(&values)], &mut numbers).unwrap();
    assert!(numbers.iter().copied().eq(0..200_001));
    let mut random = StdRng::seed_from_u64(1);
    let order: UInt64Array = (0..100_000).map(|_| random.random_range(0..200_001)).collect();
    numbers.clear();
    groups.number(&[take(&values, &order, None).unwrap()], &mut numbers).unwrap();
    assert!(numbers.iter().zip(order.values()).all(|(number, row)| *number as u64 == *row));
    assert_eq!(groups.take().unwrap()[0].as_ref(), values.as_ref());
}

#[test]
fn rows_are_divided_by_their_hash() {
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..100 {
        let hashes: Vec<u64> = (0..random.random_range(0..2000)).map(|_| random.random()).collect();
        let split = HashSplit {
            outputs: random.random_range(1..20),
            fanout: 1 << random.random_range(0..9),
            level: random.random_range(0..=HashSplit::MOST_LEVEL),
        };
        let rows = split.rows(&hashes);
        assert_eq!((rows.starts.len(), rows.order.len()), (split.partitions() + 1, hashes.len()));
        assert_eq!((rows.starts[0], rows.starts[split.partitions()] as usize), (0, hashes.len()));
        let mut seen = vec![false; hashes.len()];
        for partition in 0..split.partitions() {
            let rows = &rows.order[rows.starts[partition] as usize..rows.starts[partition + 1] as usize];
            assert!(rows.is_sorted());
            for row in rows.iter().map(|row| *row as usize) {
                assert!(!std::mem::replace(&mut seen[row], true));
                assert_eq!(hashes[row] % split.outputs as u64, (partition / split.fanout) as u64);
                let byte = hashes[row].to_be_bytes()[split.level as usize];
                assert_eq!(usize::from(byte) * split.fanout / 256, partition % split.fanout);
            }
        }
    }
}
