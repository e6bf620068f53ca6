//! Converts values of a column to words in the order of the SQL comparison.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{ArrowNativeType, DataType};
use arrow::row::{RowConverter, Rows, SortField};

use super::spec::Comparison;
use crate::error::Result;
use crate::keys::bits_of;

const SIGN: u64 = 1 << 63;

/// Whether key words decide `<`, `<=`, `>` and `>=` between values of the type.
///
/// False for intervals, because their order is not that of their parts, and for dictionaries and nested types.
pub fn is_ordered(data_type: &DataType) -> bool {
    use DataType::*;
    let is_number = matches!(
        data_type,
        Boolean | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 | Float32 | Float64
    );
    let is_decimal = matches!(data_type, Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..));
    let is_time = matches!(data_type, Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Duration(_));
    let is_text = matches!(data_type, Utf8 | LargeUtf8 | Utf8View);
    let is_binary = matches!(data_type, Binary | LargeBinary | BinaryView | FixedSizeBinary(_));
    is_number || is_decimal || is_time || is_text || is_binary
}

/// The values of a column as ordered words. The word of a null is arbitrary.
#[derive(Debug)]
pub(super) enum KeyWords {
    Narrow(Vec<u64>),
    Wide(Vec<u128>),
    Bytes(Rows),
}

impl KeyWords {
    /// The words of an array of a type that [`is_ordered`].
    pub(super) fn new(array: &ArrayRef) -> Result<Self> {
        fn narrow<T: ArrowNativeType>(array: &ArrayRef, word: impl Fn(T) -> u64) -> KeyWords {
            KeyWords::Narrow(bits_of(array).iter().map(|value| word(*value)).collect())
        }
        fn signed<T: ArrowNativeType + Into<i64>>(array: &ArrayRef) -> KeyWords {
            narrow(array, |value: T| value.into() as u64 ^ SIGN)
        }
        let data_type = array.data_type();
        Ok(match (data_type.is_unsigned_integer(), data_type.primitive_width()) {
            // Converting f32 to f64 is exact and keeps the order.
            (_, Some(4)) if data_type.is_floating() => narrow(array, |value: f32| total_order(value.into())),
            (_, Some(8)) if data_type.is_floating() => narrow(array, total_order),
            (true, Some(1)) => narrow(array, |value: u8| value.into()),
            (true, Some(2)) => narrow(array, |value: u16| value.into()),
            (true, Some(4)) => narrow(array, |value: u32| value.into()),
            (true, Some(8)) => narrow(array, |value: u64| value),
            (false, Some(1)) => signed::<i8>(array),
            (false, Some(2)) => signed::<i16>(array),
            (false, Some(4)) => signed::<i32>(array),
            (false, Some(8)) => signed::<i64>(array),
            (_, Some(16)) => {
                const WIDE_SIGN: u128 = 1 << 127;
                Self::Wide(bits_of::<i128>(array).iter().map(|value| *value as u128 ^ WIDE_SIGN).collect())
            }
            _ => {
                let converter = RowConverter::new(vec![SortField::new(data_type.clone())])?;
                Self::Bytes(converter.convert_columns(&[Arc::clone(array)])?)
            }
        })
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Narrow(words) => size_of_val(&words[..]),
            Self::Wide(words) => size_of_val(&words[..]),
            Self::Bytes(rows) => rows.size(),
        }
    }

    /// Sorts `rows` by their values.
    pub(super) fn sort(&self, rows: impl Iterator<Item = u32>) -> Vec<u32> {
        fn sorted<T: Copy + Ord>(words: &[T], rows: impl Iterator<Item = u32>) -> Vec<u32> {
            let mut pairs: Vec<(T, u32)> = rows.map(|row| (words[row as usize], row)).collect();
            pairs.sort_unstable();
            pairs.into_iter().map(|(_, row)| row).collect()
        }
        match self {
            Self::Narrow(words) => sorted(words, rows),
            Self::Wide(words) => sorted(words, rows),
            Self::Bytes(words) => {
                let mut rows: Vec<u32> = rows.collect();
                rows.sort_unstable_by(|a, b| words.row(*a as usize).cmp(&words.row(*b as usize)));
                rows
            }
        }
    }
}

/// The order of IEEE 754's totalOrder, like Arrow compares floats, but with a single zero, like SQL.
fn total_order(value: f64) -> u64 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    if bits & SIGN == 0 { bits | SIGN } else { !bits }
}

/// Values in ascending order, for bisection.
#[derive(Debug)]
pub(super) struct SortedKeys {
    words: KeyWords,
    /// For [`KeyWords::Bytes`], the index of the value of each position; empty for other words, which are stored in order.
    order: Vec<u32>,
}

impl SortedKeys {
    /// The values of the rows in `order`, in that order.
    pub(super) fn new(words: KeyWords, order: &[u32]) -> Self {
        let rows = || order.iter().map(|row| *row as usize);
        let words = match words {
            KeyWords::Narrow(words) => KeyWords::Narrow(rows().map(|row| words[row]).collect()),
            KeyWords::Wide(words) => KeyWords::Wide(rows().map(|row| words[row]).collect()),
            KeyWords::Bytes(_) => return Self { words, order: order.to_vec() },
        };
        Self { words, order: vec![] }
    }

    pub(super) fn bytes(&self) -> usize {
        self.words.bytes() + size_of_val(&self.order[..])
    }

    fn len(&self) -> usize {
        match &self.words {
            KeyWords::Narrow(words) => words.len(),
            KeyWords::Wide(words) => words.len(),
            KeyWords::Bytes(_) => self.order.len(),
        }
    }

    /// Narrows the range of each stream row to the positions with a value that satisfies `comparison` with the row's key. A
    /// null satisfies no comparison.
    pub(super) fn narrow(&self, ranges: &mut [Range<u32>], comparison: Comparison, stream: &StreamKey) {
        let counts_equal = matches!(comparison, Comparison::LessOrEqual | Comparison::Greater);
        // Stream rows are in the order of their keys, so each search starts where the previous one ended.
        let mut position = 0;
        for row in &stream.order {
            let row = *row as usize;
            position = match (&self.words, &stream.words) {
                (KeyWords::Narrow(words), KeyWords::Narrow(keys)) => {
                    let key = keys[row];
                    advance(words.len(), position, |at| is_before(&words[at], &key, counts_equal))
                }
                (KeyWords::Wide(words), KeyWords::Wide(keys)) => {
                    let key = keys[row];
                    advance(words.len(), position, |at| is_before(&words[at], &key, counts_equal))
                }
                (KeyWords::Bytes(words), KeyWords::Bytes(keys)) => {
                    let key = keys.row(row);
                    let word = |at: usize| words.row(self.order[at] as usize);
                    advance(self.order.len(), position, |at| is_before(&word(at), &key, counts_equal))
                }
                _ => unreachable!("the keys of both sides are of one type"),
            };
            let range = &mut ranges[row];
            if comparison.is_upper_bound() {
                range.end = range.end.min(position as u32);
            } else {
                range.start = range.start.max(position as u32);
            }
        }
        for row in &stream.nulls {
            ranges[*row as usize] = 0..0;
        }
    }

    /// The range of all positions.
    pub(super) fn all(&self) -> Range<u32> {
        0..self.len() as u32
    }
}

fn is_before<T: Ord>(word: &T, key: &T, counts_equal: bool) -> bool {
    if counts_equal { word <= key } else { word < key }
}

/// The first position from `start` on for which `is_before` is false; close positions take fewer steps.
fn advance(len: usize, start: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut step) = (start, 1);
    while low + step <= len && is_before(low + step - 1) {
        low += step;
        step *= 2;
    }
    let mut high = (low + step - 1).min(len);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The values of a stream key for the rows of a batch.
#[derive(Debug)]
pub(super) struct StreamKey {
    words: KeyWords,
    /// The rows with a non-null key, in the order of their keys.
    pub(super) order: Vec<u32>,
    nulls: Vec<u32>,
}

impl StreamKey {
    /// The key in an array of a type that [`is_ordered`].
    pub(super) fn new(array: &ArrayRef) -> Result<Self> {
        let words = KeyWords::new(array)?;
        let logical_nulls = array.logical_nulls();
        let is_null = |row: &u32| logical_nulls.as_ref().is_some_and(|nulls| nulls.is_null(*row as usize));
        let (nulls, rows): (Vec<u32>, Vec<u32>) = (0..array.len() as u32).partition(is_null);
        Ok(Self { order: words.sort(rows.into_iter()), words, nulls })
    }
}
