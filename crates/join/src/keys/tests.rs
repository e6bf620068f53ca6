//! Tests that exactly the equal keys have equal words or bytes.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{DataType, Field, Int32Type, IntervalMonthDayNano};

use super::*;

fn equal(codec: &KeyCodec, left: &[ArrayRef], right: &[ArrayRef]) -> Vec<bool> {
    let (left, right) = (codec.encode(left).unwrap(), codec.encode(right).unwrap());
    let (left_hashes, right_hashes) = (left.hashes(), right.hashes());
    (0..left.len())
        .map(|row| {
            let equal = match (&left.data, &right.data) {
                (KeyData::Word64(a), KeyData::Word64(b)) => a[row] == b[row],
                (KeyData::Word128(a), KeyData::Word128(b)) => a[row] == b[row],
                (KeyData::Rows(a), KeyData::Rows(b)) => a.get(row) == b.get(row),
                _ => panic!("one codec gave two layouts"),
            };
            assert!(!equal || left_hashes[row] == right_hashes[row], "equal keys with different hashes");
            equal && left.is_matchable(row) && right.is_matchable(row)
        })
        .collect()
}

fn types(columns: &[ArrayRef]) -> Vec<DataType> {
    columns.iter().map(|column| column.data_type().clone()).collect()
}

#[test]
fn nulls_match_only_if_they_are_equal() {
    let left: [ArrayRef; 1] = [Arc::new(Int64Array::from(vec![Some(0), None, None, Some(7)]))];
    let right: [ArrayRef; 1] = [Arc::new(Int64Array::from(vec![None, None, Some(0), Some(7)]))];
    let unequal = KeyCodec::try_new(&types(&left), false).unwrap();
    assert_eq!(equal(&unequal, &left, &right), [false, false, false, true]);
    let null_equal = KeyCodec::try_new(&types(&left), true).unwrap();
    assert_eq!(equal(&null_equal, &left, &right), [false, true, false, true]);
}

#[test]
fn zeros_are_equal_whatever_their_sign() {
    for wide in [false, true] {
        let column = |values: Vec<f64>| -> Vec<ArrayRef> {
            let mut columns: Vec<ArrayRef> = vec![Arc::new(Float64Array::from(values.clone()))];
            if wide {
                // A string column forces the row format.
                columns.push(Arc::new(StringArray::from(vec!["x"; values.len()])));
            }
            columns
        };
        let left = column(vec![0.0, -0.0, f64::NAN, 1.0, -1.0]);
        let right = column(vec![-0.0, 0.0, f64::NAN, 1.0, 1.0]);
        let codec = KeyCodec::try_new(&types(&left), false).unwrap();
        assert_eq!(codec.word_bytes().is_none(), wide);
        assert_eq!(equal(&codec, &left, &right), [true, true, true, true, false]);
    }
}

#[test]
fn composites_keep_columns_apart() {
    let pair = |a: Vec<i32>, b: Vec<i32>| -> Vec<ArrayRef> {
        vec![Arc::new(Int32Array::from(a)), Arc::new(Int32Array::from(b))]
    };
    let (left, right) = (pair(vec![1, -1, 5], vec![2, 0, 6]), pair(vec![2, 0, 5], vec![1, -1, 6]));
    let codec = KeyCodec::try_new(&types(&left), false).unwrap();
    assert_eq!(equal(&codec, &left, &right), [false, false, true]);
}

#[test]
fn wide_composites_take_words_of_128_bits() {
    let pair = |a: Vec<i64>, b: Vec<Option<i64>>| -> Vec<ArrayRef> {
        vec![Arc::new(Int64Array::from(a)), Arc::new(Int64Array::from(b))]
    };
    let left = pair(vec![1, 2, 3], vec![Some(i64::MIN), Some(4), None]);
    let right = pair(vec![1, 2, 3], vec![Some(i64::MIN), Some(5), None]);
    let codec = KeyCodec::try_new(&types(&left), false).unwrap();
    assert!(codec.word_bytes().is_some());
    assert_eq!(equal(&codec, &left, &right), [true, false, false]);
}

#[test]
fn dictionaries_compare_by_value() {
    let left: [ArrayRef; 1] = [Arc::new(vec!["a", "b", "c"].into_iter().collect::<DictionaryArray<Int32Type>>())];
    let right: [ArrayRef; 1] = [Arc::new(vec!["b", "b", "c"].into_iter().collect::<DictionaryArray<Int32Type>>())];
    let codec = KeyCodec::try_new(&types(&left), false).unwrap();
    assert_eq!(equal(&codec, &left, &right), [false, true, true]);
}

#[test]
fn nested_keys_are_supported() {
    let field = Arc::new(Field::new("x", DataType::Utf8View, true));
    assert!(KeyCodec::supports(&[DataType::Struct(vec![Arc::clone(&field)].into()), DataType::List(field)]));
}

#[test]
fn concatenated_keys_in_row_format_stay_the_same() {
    let columns = |from: i64, rows: i64| -> [ArrayRef; 2] {
        let texts = (from..from + rows).map(|row| (row % 5 != 0).then(|| "x".repeat(row as usize % 40)));
        [Arc::new(StringArray::from_iter(texts)), Arc::new(Int64Array::from_iter_values(from..from + rows))]
    };
    let all = columns(0, 1_000);
    let codec = KeyCodec::try_new(&types(&all), true).unwrap();
    let parts = [(0, 300), (300, 0), (300, 699), (999, 1)];
    let parts = parts.map(|(from, rows)| codec.rows(&columns(from, rows)).unwrap().unwrap());
    let concatenated = KeyBytes::concat(parts.into(), 3).unwrap();
    let whole = codec.encode(&all).unwrap();
    assert_eq!(concatenated.len(), 1_000);
    for row in 0..1_000 {
        assert_eq!(concatenated.get(row), whole.bytes_of_rows().get(row), "row {row}");
    }
    assert_eq!(concatenated.hashes(), whole.hashes());
}

#[test]
fn several_threads_pack_what_one_packs() {
    let numbers = Int64Array::from_iter((0..200_000).map(|row| (row % 7 != 0).then_some(row * 31)));
    let wide: ArrayRef = Arc::new(numbers.clone());
    let narrow: ArrayRef = Arc::new(arrow::compute::cast(&numbers, &DataType::Int32).unwrap());
    for columns in [vec![Arc::clone(&narrow)], vec![Arc::clone(&narrow); 2], vec![wide; 2]] {
        for null_equal in [false, true] {
            let codec = KeyCodec::try_new(&types(&columns), null_equal).unwrap();
            let (one, three) = (codec.encode(&columns).unwrap(), codec.encode_in_parallel(&columns, 3).unwrap());
            assert!((0..one.len()).all(|row| !one.is_matchable(row) || one.are_equal(row, &three, row)));
            assert_eq!(one.matchable, three.matchable);
        }
    }
}

#[test]
fn intervals_may_be_aligned_to_their_parts_alone() {
    let intervals = IntervalMonthDayNanoArray::from_iter_values(
        (0..9).map(|number| IntervalMonthDayNano::new(number, -number, i64::from(number) * 1000)),
    );
    let mut bytes = MutableBuffer::new(256);
    bytes.extend_zeros(8);
    bytes.extend_from_slice(intervals.values().inner().as_slice());
    let shifted = Buffer::from(bytes).slice(8);
    assert_eq!(shifted.as_ptr().align_offset(8), 0);
    assert_ne!(shifted.as_ptr().align_offset(16), 0);
    let shifted = ArrayData::builder(intervals.data_type().clone()).len(9).add_buffer(shifted).build().unwrap();
    let columns: [ArrayRef; 2] = [Arc::new(intervals), make_array(shifted)];
    let codec = KeyCodec::try_new(&types(&columns[..1]), false).unwrap();
    assert_eq!(equal(&codec, &columns[..1], &columns[1..]), vec![true; 9]);
}
