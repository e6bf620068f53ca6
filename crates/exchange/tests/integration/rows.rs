//! Random tables with keys of each type, and joins that are plain to see.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type, SchemaRef, TimeUnit};
use arrow::row::{OwnedRow, RowConverter, SortField};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// The columns of keys that a test may take.
pub const KEYS: [DataType; 12] = [
    DataType::Int64,
    DataType::Int32,
    DataType::Int8,
    DataType::UInt64,
    DataType::Date32,
    DataType::Timestamp(TimeUnit::Nanosecond, None),
    DataType::Decimal128(20, 2),
    DataType::Float64,
    DataType::Utf8,
    DataType::Utf8View,
    DataType::Boolean,
    DataType::FixedSizeBinary(5),
];

/// A column of keys: numbers up to `most`, as values of a type.
fn key(random: &mut StdRng, data_type: &DataType, rows: usize, most: i64) -> ArrayRef {
    let has_nulls = random.random_bool(0.5);
    let numbers: Vec<Option<i64>> =
        (0..rows).map(|_| (!has_nulls || random.random_bool(0.9)).then(|| random.random_range(0..most))).collect();
    match data_type {
        DataType::Boolean => Arc::new(BooleanArray::from_iter(numbers.iter().map(|number| number.map(|n| n % 2 == 0)))),
        DataType::FixedSizeBinary(width) => {
            let values = numbers.iter().map(|number| number.map(|n| n.to_le_bytes()[..*width as usize].to_vec()));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, *width).unwrap())
        }
        DataType::Int8 => {
            let values = numbers.iter().map(|number| number.map(|n| (n % 100) as i8));
            Arc::new(Int8Array::from_iter(values))
        }
        DataType::Date32 => {
            let values = numbers.iter().map(|number| number.map(|n| n as i32));
            Arc::new(Date32Array::from_iter(values))
        }
        DataType::Utf8 | DataType::Utf8View => {
            let texts = numbers.iter().map(|number| number.map(|n| format!("{n}{}", "x".repeat(n as usize % 20))));
            cast(&(Arc::new(StringArray::from_iter(texts)) as ArrayRef), data_type).unwrap()
        }
        other => cast(&(Arc::new(Int64Array::from_iter(numbers)) as ArrayRef), other).unwrap(),
    }
}

/// A column besides the keys.
fn payload(random: &mut StdRng, kind: u32, rows: usize) -> ArrayRef {
    match kind {
        0 => Arc::new(Int64Array::from_iter_values((0..rows).map(|_| random.random()))),
        1 => Arc::new(Float32Array::from_iter((0..rows).map(|_| random.random_bool(0.9).then(|| random.random())))),
        2 => Arc::new(StringArray::from_iter_values((0..rows).map(|_| "text ".repeat(random.random_range(0..9))))),
        3 => {
            let lists = (0..rows).map(|row| Some((0..row % 4).map(|value| Some(value as i32)).collect::<Vec<_>>()));
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))
        }
        _ => {
            let words = ["red", "green", "blue"];
            let values = (0..rows).map(|_| words.choose(random).copied());
            Arc::new(values.collect::<DictionaryArray<Int32Type>>())
        }
    }
}

/// Two tables with keys of the same types, in batches for each rank; some ranks have none. The numbers of key columns are the first.
pub struct Tables {
    pub keys: usize,
    pub sides: [Vec<Vec<RecordBatch>>; 2],
}

impl Tables {
    pub fn random(seed: u64, ranks: usize) -> Self {
        let random = &mut StdRng::seed_from_u64(seed);
        let types: Vec<DataType> =
            (0..random.random_range(1..=3)).map(|_| KEYS.choose(random).unwrap().clone()).collect();
        let payloads = random.random_range(0..3);
        let most = if random.random_bool(0.2) { 1 } else { random.random_range(2..2000) };
        let mut side = || {
            let rows = if random.random_bool(0.1) { 0 } else { random.random_range(0..1500) };
            let kinds: Vec<u32> = (0..payloads).map(|_| random.random_range(0..5)).collect();
            let mut batch = |rows: usize| {
                let keys = types.iter().map(|data_type| key(random, data_type, rows, most));
                let mut columns: Vec<ArrayRef> = keys.collect();
                columns.extend(kinds.iter().map(|kind| payload(random, *kind, rows)));
                columns.push(Arc::new(UInt64Array::from_iter_values((0..rows).map(|_| random.random()))));
                let columns =
                    columns.into_iter().enumerate().map(|(number, column)| (format!("c{number}"), column, true));
                RecordBatch::try_from_iter_with_nullable(columns).unwrap()
            };
            let all: Vec<RecordBatch> = (0..6).map(|part| batch(if part == 0 { 0 } else { rows / 5 })).collect();
            let mut dealt = vec![vec![]; ranks];
            all.into_iter().for_each(|batch| dealt[random.random_range(0..ranks)].push(batch));
            dealt
        };
        Self { keys: types.len(), sides: [side(), side()] }
    }

    pub fn schema(&self, side: usize) -> SchemaRef {
        self.sides[side].iter().flatten().next().unwrap().schema()
    }
}

/// The rows of some columns, with whether one of them is null.
pub fn converted<'a>(
    batches: impl IntoIterator<Item = &'a RecordBatch>,
    schema: &SchemaRef,
    columns: std::ops::Range<usize>,
) -> Vec<(bool, OwnedRow)> {
    let fields = schema.fields()[columns.clone()].iter();
    let converter = RowConverter::new(fields.map(|field| SortField::new(field.data_type().clone())).collect()).unwrap();
    let mut rows = vec![];
    for batch in batches {
        let arrays = &batch.columns()[columns.clone()];
        let converted = converter.convert_columns(arrays).unwrap();
        let is_null = |row| arrays.iter().any(|array| array.is_null(row));
        rows.extend((0..batch.num_rows()).map(|row| (is_null(row), converted.row(row).owned())));
    }
    rows
}

/// The pairs of rows with equal keys, as the last columns of both rows, sorted.
pub fn joined(sides: [&[RecordBatch]; 2], schemas: [&SchemaRef; 2], keys: usize) -> Vec<(u64, u64)> {
    let rows = |side: usize| {
        let numbers = sides[side].iter().flat_map(|batch| {
            let column = batch.column(batch.num_columns() - 1).as_any().downcast_ref::<UInt64Array>().unwrap();
            column.values().to_vec()
        });
        converted(sides[side], schemas[side], 0..keys).into_iter().zip(numbers.collect::<Vec<_>>())
    };
    let mut built: HashMap<OwnedRow, Vec<u64>> = HashMap::new();
    for ((is_null, key), number) in rows(0) {
        if !is_null {
            built.entry(key).or_default().push(number);
        }
    }
    let mut pairs = vec![];
    for ((is_null, key), number) in rows(1) {
        if !is_null {
            pairs.extend(built.get(&key).into_iter().flatten().map(|other| (*other, number)));
        }
    }
    pairs.sort_unstable();
    pairs
}
