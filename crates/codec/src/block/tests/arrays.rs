//! Random arrays of all types.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array, Decimal256Array,
    DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, Float64Array, Int8Array, Int16Array,
    Int32Array, Int64Array, IntervalMonthDayNanoArray, LargeListArray, LargeListViewArray, LargeStringArray, ListArray,
    ListViewArray, MapArray, NullArray, RecordBatch, RunArray, StringArray, StringViewArray, StructArray,
    Time32SecondArray, TimestampMicrosecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array, UnionArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Int32Type, IntervalMonthDayNano, Schema, UnionFields, i256};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

pub type Random = ChaCha8Rng;

/// Integers of a random shape: any, of few bits, in runs, or in order.
fn integers(random: &mut Random, rows: usize) -> Vec<i64> {
    let shape = random.random_range(0..4);
    let mut last: i64 = random.random();
    let mut next = || match shape {
        0 => random.random(),
        1 => random.random_range(-3..60),
        2 => {
            if random.random_bool(0.1) {
                last = random.random_range(0..1 << 40);
            }
            last
        }
        _ => {
            last = last.wrapping_add(random.random_range(0..5));
            last
        }
    };
    (0..rows).map(|_| next()).collect()
}

fn nulls(random: &mut Random, rows: usize) -> Option<NullBuffer> {
    let share = *[0.0, 0.0, 0.1, 0.9, 1.0].choose(random).unwrap();
    random.random_bool(0.7).then(|| (0..rows).map(|_| !random.random_bool(share)).collect())
}

fn texts(random: &mut Random, rows: usize) -> Vec<String> {
    let most = *[0, 3, 12, 13, 40].choose(random).unwrap();
    let letters = ['a', 'b', 'ü', '漢', ' '];
    let mut text = || (0..random.random_range(0..=most)).map(|_| *letters.choose(random).unwrap()).collect();
    (0..rows).map(|_| text()).collect()
}

fn lengths(random: &mut Random, rows: usize) -> Vec<usize> {
    let most = random.random_range(0..5);
    (0..rows).map(|_| random.random_range(0..=most)).collect()
}

fn offsets(random: &mut Random, rows: usize) -> OffsetBuffer<i32> {
    OffsetBuffer::from_lengths(lengths(random, rows))
}

fn field(array: &dyn Array) -> Arc<Field> {
    Arc::new(Field::new("item", array.data_type().clone(), true))
}

/// How many kinds of arrays [`array`] makes.
pub const KINDS: usize = 37;

/// The first of them that have no other arrays in them.
const FLAT: usize = 26;

/// An array of one of [`KINDS`].
fn array(random: &mut Random, kind: usize, rows: usize) -> ArrayRef {
    if kind < FLAT { flat(random, kind, rows) } else { nested(random, kind, rows) }
}

fn flat(random: &mut Random, kind: usize, rows: usize) -> ArrayRef {
    let nulls = nulls(random, rows);
    macro_rules! primitive {
        ($array:ident) => {{
            let values: Vec<_> = integers(random, rows).into_iter().map(|value| value as _).collect();
            Arc::new($array::new(values.into(), nulls))
        }};
    }
    macro_rules! texts {
        ($array:ident, $as:expr) => {{
            let texts = texts(random, rows);
            let is_null = |row| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            let texts = texts.iter().enumerate().map(|(row, text)| (!is_null(row)).then(|| ($as)(text)));
            Arc::new($array::from_iter(texts))
        }};
    }
    match kind {
        0 => Arc::new(NullArray::new(rows)),
        1 => Arc::new(BooleanArray::new((0..rows).map(|_| random.random_bool(0.8)).collect::<Vec<_>>().into(), nulls)),
        2 => primitive!(Int8Array),
        3 => primitive!(Int16Array),
        4 => primitive!(Int32Array),
        5 => primitive!(Int64Array),
        6 => primitive!(UInt8Array),
        7 => primitive!(UInt16Array),
        8 => primitive!(UInt32Array),
        9 => primitive!(UInt64Array),
        10 => primitive!(Float32Array),
        11 => primitive!(Float64Array),
        12 => primitive!(Date32Array),
        13 => primitive!(Time32SecondArray),
        14 => primitive!(TimestampMicrosecondArray),
        15 => primitive!(Decimal128Array),
        16 => {
            // Of two words.
            let shift = random.random_range(0..60);
            let values: Vec<_> = integers(random, rows).iter().map(|value| i128::from(*value) << shift).collect();
            Arc::new(Decimal128Array::new(values.into(), nulls).with_precision_and_scale(38, 3).unwrap())
        }
        17 => texts!(StringArray, |text| text),
        18 => texts!(LargeStringArray, |text| text),
        19 => texts!(StringViewArray, |text| text),
        20 => texts!(BinaryArray, |text: &String| text.clone().into_bytes()),
        21 => texts!(BinaryViewArray, |text: &String| text.clone().into_bytes()),
        22 => {
            let values: Vec<_> = integers(random, rows).into_iter().map(i256::from).collect();
            Arc::new(Decimal256Array::new(values.into(), nulls))
        }
        23 => {
            let values = integers(random, rows).into_iter().flat_map(i64::to_le_bytes).collect::<Vec<_>>();
            Arc::new(FixedSizeBinaryArray::new(8, values.into(), nulls))
        }
        24 => {
            let interval = |value: i64| IntervalMonthDayNano::new(value as i32, (value >> 7) as i32, value);
            let values: Vec<_> = integers(random, rows).into_iter().map(interval).collect();
            Arc::new(IntervalMonthDayNanoArray::new(values.into(), nulls))
        }
        _ => {
            // What lies under nulls is not shown.
            let texts = StringArray::from_iter_values(texts(random, rows));
            let (offsets, values, _) = texts.into_parts();
            Arc::new(StringArray::new(offsets, values, nulls))
        }
    }
}

/// Arrays of other arrays.
fn nested(random: &mut Random, kind: usize, rows: usize) -> ArrayRef {
    let nulls = nulls(random, rows);
    let child = |random: &mut Random, rows| {
        let kind = random.random_range(0..FLAT);
        flat(random, kind, rows)
    };
    match kind {
        26 => {
            let offsets = offsets(random, rows);
            let values = child(random, *offsets.last().unwrap() as usize);
            Arc::new(ListArray::new(field(&values), offsets, values, nulls))
        }
        27 => {
            let offsets = OffsetBuffer::<i64>::from_lengths(lengths(random, rows));
            let values = child(random, *offsets.last().unwrap() as usize);
            Arc::new(LargeListArray::new(field(&values), offsets, values, nulls))
        }
        28 => {
            let values = child(random, rows * 3);
            Arc::new(FixedSizeListArray::new(field(&values), 3, values, nulls))
        }
        29 => {
            let offsets = offsets(random, rows);
            let count = *offsets.last().unwrap() as usize;
            let keys: ArrayRef = Arc::new(StringArray::from_iter_values(texts(random, count)));
            let values = child(random, count);
            let fields =
                vec![Field::new("keys", DataType::Utf8, false), Field::new("values", values.data_type().clone(), true)];
            let entries = StructArray::new(fields.into(), vec![keys, values], None);
            let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
            Arc::new(MapArray::new(entry, offsets, entries, nulls, false))
        }
        30 => {
            let children = [child(random, rows), child(random, rows)];
            let fields: Vec<_> = children.iter().map(|child| field(child)).collect();
            Arc::new(StructArray::new(fields.into(), children.to_vec(), nulls))
        }
        31 | 32 => {
            // With more values than codes name, or few.
            let count = if kind == 31 { 3 } else { rows + 5 };
            let codes: Vec<_> = (0..rows).map(|_| random.random_range(0..count as i32)).collect();
            let values = child(random, count);
            Arc::new(DictionaryArray::<Int32Type>::new(Int32Array::new(codes.into(), nulls), values))
        }
        33 => {
            let ends = lengths(random, rows).into_iter().scan(0, |end, length| {
                *end += length as i32 + 1;
                Some(*end)
            });
            let ends: Vec<_> = ends.collect();
            let values = child(random, ends.len());
            let runs = RunArray::<Int32Type>::try_new(&Int32Array::from(ends), &values).unwrap();
            Arc::new(runs.slice(0, rows))
        }
        34 => {
            let offsets = offsets(random, rows);
            let values = child(random, *offsets.last().unwrap() as usize);
            let sizes: Vec<_> = offsets.lengths().map(|length| length as i32).collect();
            let starts = ScalarBuffer::from(offsets[..rows].to_vec());
            if random.random() {
                let wide = |values: &[i32]| values.iter().map(|value| i64::from(*value)).collect::<ScalarBuffer<_>>();
                let (starts, sizes) = (wide(&starts), wide(&sizes));
                return Arc::new(LargeListViewArray::new(field(&values), starts, sizes, values, nulls));
            }
            Arc::new(ListViewArray::new(field(&values), starts, sizes.into(), values, nulls))
        }
        35 => {
            let children = vec![child(random, rows), child(random, rows)];
            let fields =
                UnionFields::try_new([0, 1], children.iter().map(|child| field(child).as_ref().clone())).unwrap();
            let kinds: Vec<i8> = (0..rows).map(|_| random.random_range(0..2)).collect();
            Arc::new(UnionArray::try_new(fields, kinds.into(), None, children).unwrap())
        }
        _ => {
            let numbers: Vec<i8> = (0..rows).map(|_| random.random_range(0..2)).collect();
            let children = vec![child(random, rows + 1), child(random, rows + 1)];
            let fields = children.iter().map(|child| field(child).as_ref().clone());
            let offsets: Vec<_> = (0..rows).map(|_| random.random_range(0..=rows as i32)).collect();
            let fields = UnionFields::try_new([0, 1], fields).unwrap();
            Arc::new(UnionArray::try_new(fields, numbers.into(), Some(offsets.into()), children).unwrap())
        }
    }
}

/// A slice of random arrays.
pub fn batch(random: &mut Random, kinds: &[usize]) -> RecordBatch {
    let rows = *[0, 1, 7, 100, 1500, 5000].choose(random).unwrap();
    let (before, after) =
        if random.random() { (random.random_range(0..20), random.random_range(0..20)) } else { (0, 0) };
    let columns = kinds.iter().map(|kind| array(random, *kind, before + rows + after));
    let columns: Vec<_> = columns.map(|column| column.slice(before, rows)).collect();
    let fields = columns
        .iter()
        .enumerate()
        .map(|(place, column)| Field::new(place.to_string(), column.data_type().clone(), true));
    RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns).unwrap()
}
