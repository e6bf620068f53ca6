//! Random tables and queries.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Decimal128Array, PrimitiveArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, Int32Type, Int64Type, Schema, SchemaRef, TimeUnit, UInt64Type,
};
use arrow::util::display::array_value_to_string;
use datafusion::datasource::MemTable;
use rand::Rng;
use rand::seq::IndexedRandom;

/// A table, and a query over it.
pub struct Case {
    pub sql: String,
    pub partitions: usize,
    schema: SchemaRef,
    batches: Vec<Vec<RecordBatch>>,
}

fn types() -> Vec<DataType> {
    vec![
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Int64,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Date32,
        DataType::Date64,
        DataType::Time32(TimeUnit::Second),
        DataType::Timestamp(TimeUnit::Nanosecond, None),
        DataType::Decimal128(15, 2),
        DataType::Decimal128(15, 2),
        DataType::Decimal128(38, 4),
    ]
}

/// Random values; a null every few rows.
fn primitive<T: ArrowPrimitiveType>(
    rng: &mut impl Rng,
    rows: usize,
    nulls: f64,
    draw: impl Fn(i64) -> T::Native,
) -> PrimitiveArray<T> {
    (0..rows)
        .map(|_| {
            let value = match rng.random_range(0..40) {
                0 => rng.random::<i64>(),
                1 => *[i64::MIN, i64::MAX, 0].choose(rng).unwrap(),
                _ => rng.random_range(-100..100),
            };
            (!rng.random_bool(nulls)).then(|| draw(value))
        })
        .collect()
}

fn column(rng: &mut impl Rng, rows: usize, data_type: &DataType, nulls: f64) -> ArrayRef {
    let cast_to = |array: ArrayRef| cast(&array, data_type).unwrap();
    // Of the largest integers, sums and products are errors: most columns have smaller ones.
    let shift = *[0, 40, 40].choose(rng).unwrap();
    let array: ArrayRef = match data_type {
        DataType::Decimal128(precision, scale) => {
            // Beyond 64 bits only where the type has room, and rarely: products of them overflow.
            let is_wide = *precision == 38 && rng.random_bool(0.3);
            let factor = if is_wide { 10_i128.pow(19) } else { 1 };
            let most = 10_i128.pow(u32::from(*precision).min(if is_wide { 37 } else { 15 })) - 1;
            let values = primitive::<Int64Type>(rng, rows, nulls, |value| value);
            let values = values.iter().map(|value| value.map(|value| (i128::from(value) * factor).clamp(-most, most)));
            Arc::new(values.collect::<Decimal128Array>().with_precision_and_scale(*precision, *scale).unwrap())
        }
        DataType::UInt64 => Arc::new(primitive::<UInt64Type>(rng, rows, nulls, |value| value as u64 >> shift)),
        DataType::Int64 => Arc::new(primitive::<Int64Type>(rng, rows, nulls, |value| value >> shift)),
        DataType::UInt32 => Arc::new(primitive::<arrow::datatypes::UInt32Type>(rng, rows, nulls, |value| value as u32)),
        DataType::UInt16 => Arc::new(primitive::<arrow::datatypes::UInt16Type>(rng, rows, nulls, |value| value as u16)),
        DataType::UInt8 => Arc::new(primitive::<arrow::datatypes::UInt8Type>(rng, rows, nulls, |value| value as u8)),
        DataType::Int16 => Arc::new(primitive::<arrow::datatypes::Int16Type>(rng, rows, nulls, |value| value as i16)),
        DataType::Int8 => Arc::new(primitive::<arrow::datatypes::Int8Type>(rng, rows, nulls, |value| value as i8)),
        // Times of a day, days of a few thousand years, and moments, which all have names.
        DataType::Time32(_) => {
            cast_to(Arc::new(primitive::<Int32Type>(rng, rows, nulls, |value| value.rem_euclid(24 * 3600) as i32)))
        }
        DataType::Date32 => {
            cast_to(Arc::new(primitive::<Int32Type>(rng, rows, nulls, |value| (value % 500_000) as i32)))
        }
        DataType::Date64 => {
            cast_to(Arc::new(primitive::<Int64Type>(rng, rows, nulls, |value| value % 500_000 * 86_400_000)))
        }
        DataType::Int32 => Arc::new(primitive::<Int32Type>(rng, rows, nulls, |value| value as i32)),
        _ => cast_to(Arc::new(primitive::<Int64Type>(rng, rows, nulls, |value| value))),
    };
    array
}

impl Case {
    pub fn random(rng: &mut impl Rng) -> Self {
        let rows = *[0, 1, 50, 3000, 6000].choose(rng).unwrap();
        let types: Vec<_> = (0..rng.random_range(2..=8)).map(|_| types().choose(rng).unwrap().clone()).collect();
        let columns: Vec<ArrayRef> = types
            .iter()
            .map(|data_type| {
                let nulls = *[0.0, 0.0, 0.1, 0.7].choose(rng).unwrap();
                column(rng, rows, data_type, nulls)
            })
            .collect();
        let fields: Vec<_> = columns
            .iter()
            .enumerate()
            .map(|(number, column)| {
                let nullable = column.null_count() > 0 || rng.random_bool(0.5);
                Field::new(format!("c{number}"), column.data_type().clone(), nullable)
            })
            .collect();
        let schema = Arc::new(Schema::new(fields));
        let all = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        let sql = query(rng, &all);
        let partitions = rng.random_range(1..=3);
        let mut batches = vec![Vec::new(); partitions];
        let mut start = 0;
        while start < rows {
            // Slices of one batch: their columns do not start where their memory does.
            let length = rng.random_range(1..=2000).min(rows - start);
            batches[rng.random_range(0..partitions)].push(all.slice(start, length));
            start += length;
        }
        Self { sql, partitions, schema, batches }
    }

    pub fn table(&self) -> Arc<MemTable> {
        Arc::new(MemTable::try_new(Arc::clone(&self.schema), self.batches.clone()).unwrap())
    }
}

fn query(rng: &mut impl Rng, all: &RecordBatch) -> String {
    let conditions: Vec<_> = (0..rng.random_range(1..=3)).map(|_| condition(rng, all)).collect();
    let aggregates: Vec<_> =
        (0..rng.random_range(1..=4)).map(|number| format!("{} AS a{number}", aggregate(rng, all))).collect();
    format!("SELECT {} FROM t WHERE {}", aggregates.join(", "), conditions.join(" AND "))
}

/// A constant of a column's type, and mostly one of its values.
fn constant(rng: &mut impl Rng, all: &RecordBatch, column: usize) -> String {
    let values = all.column(column);
    let data_type = values.data_type();
    let row = rng.random_range(0..values.len().max(1));
    let text = if values.is_empty() || values.is_null(row) {
        match data_type {
            DataType::Date32 | DataType::Date64 => "1970-01-03".to_owned(),
            DataType::Timestamp(..) => "1970-01-01T00:00:00.000000005".to_owned(),
            DataType::Time32(_) => "00:00:07".to_owned(),
            _ => "5".to_owned(),
        }
    } else {
        array_value_to_string(values, row).unwrap()
    };
    let name = match data_type {
        DataType::Decimal128(precision, scale) => format!("Decimal128({precision}, {scale})"),
        other => other.to_string(),
    };
    format!("arrow_cast('{text}', '{name}')")
}

fn condition(rng: &mut impl Rng, all: &RecordBatch) -> String {
    let column = rng.random_range(0..all.num_columns());
    let one = constant(rng, all, column);
    match rng.random_range(0..12) {
        0 | 1 => format!("c{column} BETWEEN {one} AND {}", constant(rng, all, column)),
        2 | 3 => format!("{one} > c{column}"),
        4 => format!("c{column} = {one}"),
        5 | 6 => format!("c{column} < {one}"),
        7 => format!("c{column} <= {one}"),
        8 | 9 => format!("c{column} >= {one}"),
        10 => format!("{one} <= c{column}"),
        _ => format!("c{column} > {one}"),
    }
}

fn aggregate(rng: &mut impl Rng, all: &RecordBatch) -> String {
    let of = |kind: fn(&DataType) -> bool| -> Vec<usize> {
        (0..all.num_columns()).filter(|column| kind(all.column(*column).data_type())).collect()
    };
    let any = rng.random_range(0..all.num_columns());
    let numbers = of(|data_type| data_type.is_integer() || matches!(data_type, DataType::Decimal128(..)));
    let wide = of(|data_type| matches!(data_type, DataType::Int64 | DataType::UInt64 | DataType::Decimal128(..)));
    match rng.random_range(0..7) {
        0 => "count(*)".to_owned(),
        1 => format!("count(c{any})"),
        2 => format!("min(c{any})"),
        3 => format!("max(c{any})"),
        4 if !numbers.is_empty() => format!("sum(c{})", numbers.choose(rng).unwrap()),
        5 | 6 if !wide.is_empty() => {
            let left = *wide.choose(rng).unwrap();
            let same = |column: &&usize| {
                let types = (all.column(left).data_type(), all.column(**column).data_type());
                types.0 == types.1 || matches!(types, (DataType::Decimal128(..), DataType::Decimal128(..)))
            };
            let fitting: Vec<_> = wide.iter().filter(same).collect();
            format!("sum(c{left} * c{})", fitting.choose(rng).unwrap())
        }
        _ => "count(*)".to_owned(),
    }
}
