//! Groups against maps from values to numbers.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Decimal256Array, Float64Array,
    Int8Array, Int16Array, Int32Array, Int64Array, LargeStringArray, StringArray, StringViewArray, UInt64Array,
};
use arrow::compute::{concat, take};
use arrow::datatypes::{DataType, UInt64Type, i256};
use arrow::row::{RowConverter, SortField};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Groups, HashSplit, PartitionedRows, Table};

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
        7 => {
            let column: Decimal128Array = values.map(|value| Some(value? / 100)).collect();
            Arc::new(column.with_precision_and_scale(38, 3).unwrap())
        }
        8 => Arc::new(values.map(|value| Some((value? as u8).to_string())).collect::<StringArray>()),
        9 => Arc::new(values.map(text).collect::<StringViewArray>()),
        10 => Arc::new(values.map(text).collect::<LargeStringArray>()),
        _ => Arc::new(values.map(|value| Some(value?.to_le_bytes()[..3].to_vec())).collect::<BinaryArray>()),
    }
}

/// Kinds of columns.
const KINDS: usize = 12;

/// A text for a number. Numbers around zero get at most 20 bytes. Some texts end in NUL bytes.
fn text(value: Option<i128>) -> Option<String> {
    let value = value?;
    Some(match value % 4 {
        0 => String::new(),
        1 => "\0".repeat((value % 3).unsigned_abs() as usize),
        2 => format!("{value}"),
        _ if value.abs() < 20 => format!("{value:020}"),
        _ => format!("ä prefix of many bytes {value}"),
    })
}

#[test]
fn groups_are_numbered_by_their_first_rows() {
    let mut random = StdRng::seed_from_u64(7);
    let mut tables = [0; 4];
    for _ in 0..500 {
        let kinds: Vec<usize> = (0..random.random_range(1..5)).map(|_| random.random_range(0..KINDS)).collect();
        let has_nulls: Vec<bool> = kinds.iter().map(|_| random.random_bool(0.5)).collect();
        let sample: Vec<_> = kinds.iter().map(|kind| column(*kind, 0, false, &mut random)).collect();
        let types: Vec<(DataType, bool)> =
            sample.iter().zip(&has_nulls).map(|(column, nulls)| (column.data_type().clone(), *nulls)).collect();
        let mut groups = Groups::try_new(&types).unwrap();
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
            tables[match groups.table {
                Table::Word64(_) => 0,
                Table::Word128(_) => 1,
                Table::Word192(_) => 2,
                Table::Rows(_) => 3,
            }] += 1;
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
    assert!(tables.iter().all(|tried| *tried > 20), "{tables:?}");
}

#[test]
fn other_types_are_not_packed() {
    for data_type in [DataType::Float64, DataType::Null, DataType::Decimal256(40, 0)] {
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
        assert_eq!(rows.starts.len(), split.partitions() + 1);
        assert_eq!((rows.starts[0], rows.starts[split.partitions()] as usize), (0, hashes.len()));
        let numbers: ArrayRef = Arc::new((0..hashes.len() as u64).collect::<UInt64Array>());
        let ordered = rows.ordered(&parts(&numbers, &mut random).iter().map(AsRef::as_ref).collect::<Vec<_>>());
        let ordered = ordered.unwrap();
        let numbers = ordered.as_primitive::<UInt64Type>().values();
        let mut seen = vec![false; hashes.len()];
        for partition in 0..split.partitions() {
            let rows = &numbers[rows.starts[partition] as usize..rows.starts[partition + 1] as usize];
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

/// Slices of a column that follow each other, each of an array that begins before it.
fn parts(column: &ArrayRef, random: &mut StdRng) -> Vec<ArrayRef> {
    let (mut parts, mut first) = (vec![], 0);
    while first < column.len() || parts.is_empty() {
        let rows = random.random_range(0..=column.len() - first);
        parts.push(column.slice(first, rows));
        first += rows;
    }
    parts
}

#[test]
fn columns_are_ordered_by_partition() {
    let mut random = StdRng::seed_from_u64(5);
    for round in 0..200 {
        let rows = random.random_range(0..3000);
        let hashes: Vec<u64> = (0..rows).map(|_| random.random()).collect();
        let split = HashSplit { outputs: 3, fanout: 8, level: 0 };
        let partitioned = split.rows(&hashes);
        let numbers: ArrayRef = Arc::new((0..rows as u64).collect::<UInt64Array>());
        let order = partitioned.ordered(&[&numbers]).unwrap();
        let column: ArrayRef = match round % 14 {
            KINDS => Arc::new((0..rows).map(|_| Some(random.random::<f64>())).collect::<Float64Array>()),
            13 => Arc::new(Decimal256Array::from_iter_values((0..rows).map(|_| i256::from_i128(random.random())))),
            kind => column(kind, rows, random.random_bool(0.5), &mut random),
        };
        assert!(PartitionedRows::orders(column.data_type()));
        let parts = parts(&column, &mut random);
        let ordered = partitioned.ordered(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>()).unwrap();
        assert_eq!(ordered.as_ref(), take(&column, &order, None).unwrap().as_ref());
    }
    assert!(!PartitionedRows::orders(&DataType::Null));
}

/// A column of one value takes no bits, also where the others take all bits of a word.
#[test]
fn a_column_of_one_value_takes_no_bits() {
    let one: ArrayRef = Arc::new(Int64Array::from(vec![5; 3]));
    let all: ArrayRef = Arc::new(Int64Array::from(vec![i64::MIN, i64::MAX, 0]));
    for of_all_bits in 1..4 {
        let columns = [vec![Arc::clone(&one)], vec![Arc::clone(&all); of_all_bits]].concat();
        let mut groups = Groups::try_new(&vec![(DataType::Int64, false); columns.len()]).unwrap();
        let mut numbers = vec![];
        groups.number(&columns, &mut numbers).unwrap();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(groups.take().unwrap(), columns);
    }
}

/// Values that lie further and further apart, and longer and longer texts: keys get more and more bits until they are rows.
#[test]
fn keys_are_packed_anew() {
    let types = [(DataType::Int64, true), (DataType::UInt64, false), (DataType::Utf8View, true)];
    let mut groups = Groups::try_new(&types).unwrap();
    let columns: [ArrayRef; 3] = [
        Arc::new(
            (0..640_u64)
                .map(|row| (row % 7 != 0).then(|| ((1_i64 << (row / 10)) / 3).wrapping_neg()))
                .collect::<Int64Array>(),
        ),
        Arc::new((0..640_u64).map(|row| Some((u64::MAX >> (63 - row / 10)) - row % 2)).collect::<UInt64Array>()),
        Arc::new((0..640).map(|row| (row % 5 != 0).then(|| "x".repeat(row / 30))).collect::<StringViewArray>()),
    ];
    let rows =
        RowConverter::new(types.iter().map(|(data_type, _)| SortField::new(data_type.clone())).collect()).unwrap();
    let rows = rows.convert_columns(&columns).unwrap();
    let (mut expected, mut first_rows, mut numbers, mut tables) = (HashMap::new(), vec![], vec![], vec![]);
    for first in (0..640).step_by(10) {
        groups.number(&columns.each_ref().map(|column| column.slice(first, 10)), &mut numbers).unwrap();
        tables.push(std::mem::discriminant(&groups.table));
    }
    for (row, number) in numbers.into_iter().enumerate() {
        let next = expected.len();
        assert_eq!(number, *expected.entry(rows.row(row).owned()).or_insert(next), "row {row}");
        if number == next {
            first_rows.push(row as u64);
        }
    }
    tables.dedup();
    assert_eq!(tables.len(), 4);
    let first_rows = UInt64Array::from(first_rows);
    for (taken, column) in groups.take().unwrap().iter().zip(&columns) {
        assert_eq!(taken.as_ref(), take(column, &first_rows, None).unwrap().as_ref());
    }
}
