//! Every type that a join key can have, filled from small numbers: equal numbers give equal keys.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::*;
use rand::Rng;
use rand::seq::IndexedRandom;

macro_rules! key_types {
    ($($name:ident),* $(,)?) => {
        /// The types that DataFusion can hash and this harness can build.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum KeyType { $($name),* }

        pub const ALL: &[KeyType] = &[$(KeyType::$name),*];
    };
}

#[rustfmt::skip]
key_types! {
    Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, SparseInt64,
    Decimal32, Decimal64, Decimal128, WideDecimal128, Decimal256,
    Float16, Float32, Float64,
    Date32, Date64, TimestampSecond, TimestampMicro, TimestampNano, TimestampUtc,
    Time32, Time64, Duration, IntervalYearMonth, IntervalDayTime, IntervalMonthDayNano,
    Boolean,
    Utf8, LargeUtf8, Utf8View, Binary, LargeBinary, BinaryView, FixedSizeBinary,
    DictionaryUtf8, SmallDictionaryUtf8, DictionaryInt64,
    Struct, List, LargeList, FixedSizeList,
    Null,
}

use KeyType::*;

/// Types of two columns that DataFusion brings to one type before it compares them, both ways round.
const COERCED: [(KeyType, KeyType); 12] = [
    (Int8, Int64),
    (Int32, Int64),
    (UInt16, Int32),
    (UInt32, UInt64),
    (Int32, Float64),
    (Float32, Float64),
    (Decimal64, Decimal128),
    (Int32, Decimal128),
    (Utf8, Utf8View),
    (Utf8, LargeUtf8),
    (DictionaryUtf8, Utf8),
    (TimestampSecond, TimestampNano),
];

impl KeyType {
    /// The types of the two sides of one key, mostly the same and mostly a common one.
    pub fn random_pair(rng: &mut impl Rng, for_duckdb: bool) -> (KeyType, KeyType) {
        if rng.random_bool(0.08) {
            let (left, right) = *COERCED.choose(rng).unwrap();
            if !for_duckdb || (left.known_to_duckdb() && right.known_to_duckdb()) {
                return if rng.random_bool(0.5) { (left, right) } else { (right, left) };
            }
        }
        let both = Self::random(rng, for_duckdb);
        (both, both)
    }

    pub fn random(rng: &mut impl Rng, for_duckdb: bool) -> KeyType {
        loop {
            let drawn = if rng.random_bool(0.5) {
                *[Int32, Int64, SparseInt64, Utf8, Utf8View, Date32, Decimal128].choose(rng).unwrap()
            } else {
                // A key that is NULL in every row joins nothing; `Null` is for the test of every type.
                ALL[rng.random_range(0..ALL.len() - 1)]
            };
            if !for_duckdb || drawn.known_to_duckdb() {
                return drawn;
            }
        }
    }

    /// How many different keys the type has for us; numbers are taken modulo it.
    ///
    /// DataFusion's repartitions join batches of different dictionaries by a cache that may keep a value twice. With
    /// 100 values, two such batches already have too few 8-bit keys, and which batches meet is a matter of timing; 30
    /// values stay far below.
    pub fn domain(self) -> i64 {
        match self {
            Boolean => 2,
            Int8 | UInt8 => 100,
            SmallDictionaryUtf8 => 30,
            Float16 => 1000,
            Int16 | UInt16 => 30_000,
            Null => 1,
            _ => 80_000,
        }
    }

    /// Whether the Parquet writer takes it.
    pub fn known_to_parquet(self) -> bool {
        self != IntervalMonthDayNano
    }

    /// Whether DuckDB has the type with the same meaning and reads it from Parquet.
    pub fn known_to_duckdb(self) -> bool {
        matches!(
            self,
            Int8 | Int16
                | Int32
                | Int64
                | SparseInt64
                | UInt8
                | UInt16
                | UInt32
                | UInt64
                | Decimal64
                | Decimal128
                | WideDecimal128
                | Float32
                | Float64
                | Date32
                | TimestampMicro
                | TimestampUtc
                | Time64
                | Boolean
                | Utf8
                | LargeUtf8
                | Utf8View
                | Binary
                | LargeBinary
                | BinaryView
                | DictionaryUtf8
        )
    }

    /// The key column that holds `numbers`; each number is below [`Self::domain`].
    pub fn array(self, numbers: &[Option<i64>]) -> ArrayRef {
        macro_rules! primitive {
            ($array:ident, $of:expr) => {
                Arc::new(numbers.iter().map(|number| number.map($of)).collect::<$array>())
            };
        }
        match self {
            Null => Arc::new(NullArray::new(numbers.len())),
            Boolean => Arc::new(numbers.iter().map(|n| n.map(|n| n == 1)).collect::<BooleanArray>()),
            Int8 => primitive!(Int8Array, |n| (n - 50) as i8),
            Int16 => primitive!(Int16Array, |n| (n - 15_000) as i16),
            Int32 => primitive!(Int32Array, |n| n as i32 - 100),
            Int64 => primitive!(Int64Array, |n| n - 100),
            SparseInt64 => primitive!(Int64Array, |n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64)),
            UInt8 => primitive!(UInt8Array, |n| n as u8 + 150),
            UInt16 => primitive!(UInt16Array, |n| n as u16),
            UInt32 => primitive!(UInt32Array, |n| u32::MAX - n as u32),
            UInt64 => primitive!(UInt64Array, |n| u64::MAX - n as u64 * 3),
            Decimal32 => Arc::new(
                decimal::<Decimal32Type>(numbers, |n| n as i32 * 7 - 300).with_precision_and_scale(9, 2).unwrap(),
            ),
            Decimal64 => {
                Arc::new(decimal::<Decimal64Type>(numbers, |n| n * 7 - 300).with_precision_and_scale(12, 2).unwrap())
            }
            Decimal128 => Arc::new(
                decimal::<Decimal128Type>(numbers, |n| i128::from(n) * 7 - 300)
                    .with_precision_and_scale(15, 2)
                    .unwrap(),
            ),
            WideDecimal128 => Arc::new(
                decimal::<Decimal128Type>(numbers, |n| i128::from(n) << 90).with_precision_and_scale(38, 10).unwrap(),
            ),
            Decimal256 => Arc::new(
                decimal::<Decimal256Type>(numbers, |n| arrow::datatypes::i256::from_i128(i128::from(n) << 80))
                    .with_precision_and_scale(60, 5)
                    .unwrap(),
            ),
            Float16 => {
                let wide: Float32Array = numbers.iter().map(|n| n.map(|n| special_float(n) as f32)).collect();
                cast(&wide, &DataType::Float16).unwrap()
            }
            Float32 => primitive!(Float32Array, |n| special_float(n) as f32),
            Float64 => primitive!(Float64Array, special_float),
            Date32 => primitive!(Date32Array, |n| n as i32 - 10_000),
            Date64 => primitive!(Date64Array, |n| (n - 10_000) * 86_400_000),
            TimestampSecond => primitive!(TimestampSecondArray, |n| n * 61 - 1_000_000),
            TimestampMicro => primitive!(TimestampMicrosecondArray, |n| n * 61_000_001),
            TimestampNano => primitive!(TimestampNanosecondArray, |n| (n * 61 - 1_000_000) * 1_000_000_000),
            TimestampUtc => Arc::new(
                numbers
                    .iter()
                    .map(|n| n.map(|n| n * 7_000_003))
                    .collect::<TimestampMicrosecondArray>()
                    .with_timezone("UTC"),
            ),
            Time32 => primitive!(Time32MillisecondArray, |n| n as i32),
            Time64 => primitive!(Time64MicrosecondArray, |n| n * 1_000_003),
            Duration => primitive!(DurationMillisecondArray, |n| n * 17),
            IntervalYearMonth => primitive!(IntervalYearMonthArray, |n| n as i32),
            IntervalDayTime => {
                primitive!(IntervalDayTimeArray, |n| IntervalDayTimeType::make_value((n / 5) as i32, (n % 5) as i32))
            }
            IntervalMonthDayNano => primitive!(IntervalMonthDayNanoArray, |n| {
                IntervalMonthDayNanoType::make_value((n / 100) as i32, (n / 10 % 10) as i32, n % 10)
            }),
            Utf8 => Arc::new(strings(numbers)),
            LargeUtf8 | Utf8View => cast(&strings(numbers), &self.string_type()).unwrap(),
            Binary => cast(&strings(numbers), &DataType::Binary).unwrap(),
            LargeBinary => cast(&strings(numbers), &DataType::LargeBinary).unwrap(),
            BinaryView => cast(&cast(&strings(numbers), &DataType::Binary).unwrap(), &DataType::BinaryView).unwrap(),
            FixedSizeBinary => Arc::new(
                FixedSizeBinaryArray::try_from_sparse_iter_with_size(
                    numbers.iter().map(|n| n.map(|n| i128::from(n).to_be_bytes())),
                    16,
                )
                .unwrap(),
            ),
            DictionaryUtf8 => cast(&strings(numbers), &dictionary(DataType::Int32, DataType::Utf8)).unwrap(),
            SmallDictionaryUtf8 => cast(&strings(numbers), &dictionary(DataType::Int8, DataType::Utf8)).unwrap(),
            DictionaryInt64 => cast(&Int64.array(numbers), &dictionary(DataType::Int32, DataType::Int64)).unwrap(),
            Struct => Arc::new(structs(numbers)),
            List => Arc::new(lists::<i32>(numbers)),
            LargeList => Arc::new(lists::<i64>(numbers)),
            FixedSizeList => Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(
                numbers.iter().map(|n| n.map(|n| [Some(n as i32), (n % 4 != 0).then_some(7)])),
                2,
            )),
        }
    }

    fn string_type(self) -> DataType {
        if self == Utf8View { DataType::Utf8View } else { DataType::LargeUtf8 }
    }
}

/// The first numbers stand for the floats that equality is hard for: two zeros, NaN, infinities.
///
/// One NaN: to DuckDB all of them are equal, to DataFusion those of the same bits.
fn special_float(number: i64) -> f64 {
    match number {
        0 => 0.0,
        1 => -0.0,
        2 | 3 => f64::NAN,
        4 => f64::INFINITY,
        5 => f64::NEG_INFINITY,
        _ => number as f64 * 0.5 - 20.0,
    }
}

/// Strings short enough to lie inside a view, strings too long for it, and the empty string.
fn string(number: i64) -> String {
    match number {
        5 => String::new(),
        _ if number % 3 == 0 => format!("{number} is a number that is written out at length"),
        _ => format!("k{number}"),
    }
}

fn strings(numbers: &[Option<i64>]) -> StringArray {
    numbers.iter().map(|number| number.map(string)).collect()
}

fn decimal<T: DecimalType>(numbers: &[Option<i64>], of: impl Fn(i64) -> T::Native) -> PrimitiveArray<T> {
    let mut builder = PrimitiveBuilder::with_capacity(numbers.len());
    numbers.iter().for_each(|number| builder.append_option(number.map(&of)));
    builder.finish()
}

fn dictionary(key: DataType, value: DataType) -> DataType {
    DataType::Dictionary(Box::new(key), Box::new(value))
}

fn nulls(numbers: &[Option<i64>]) -> Option<arrow::buffer::NullBuffer> {
    Some(numbers.iter().map(Option::is_some).collect::<Vec<bool>>().into())
}

fn structs(numbers: &[Option<i64>]) -> StructArray {
    let number: ArrayRef = Arc::new(numbers.iter().map(|n| n.map(|n| (n / 2) as i32)).collect::<Int32Array>());
    let text: ArrayRef =
        Arc::new(numbers.iter().map(|n| n.and_then(|n| (n % 7 != 0).then(|| string(n)))).collect::<StringArray>());
    let fields = vec![Field::new("number", DataType::Int32, true), Field::new("text", DataType::Utf8, true)];
    StructArray::new(fields.into(), vec![number, text], nulls(numbers))
}

fn lists<O: OffsetSizeTrait>(numbers: &[Option<i64>]) -> GenericListArray<O> {
    let mut values = Int32Builder::new();
    let mut lengths = vec![];
    for number in numbers {
        let Some(number) = *number else {
            lengths.push(0);
            continue;
        };
        values.append_value(number as i32);
        if number % 3 == 0 {
            values.append_null();
        }
        lengths.push(if number % 3 == 0 { 2 } else { 1 });
    }
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    GenericListArray::new(item, OffsetBuffer::from_lengths(lengths), Arc::new(values.finish()), nulls(numbers))
}
