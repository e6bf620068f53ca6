//! Keys as words in their order.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericByteArray, GenericByteViewArray, OffsetSizeTrait, PrimitiveArray};
use arrow::datatypes::{
    ArrowPrimitiveType, ByteArrayType, ByteViewType, DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type,
    Decimal128Type, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    GenericBinaryType, GenericStringType, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};

/// The bit that makes signed numbers, taken as unsigned ones, keep their order.
const SIGN: u64 = 1 << 63;

/// Digits of a decimal that always fit a word.
const DIGITS: u8 = 18;

/// A column whose values have an order that 64-bit words can follow: `a < b` means `word(a) <= word(b)`, and equal values have equal
/// words. Words of text and binary values are their first eight bytes, so different values may have the same word.
#[derive(Debug, Clone, Copy)]
pub struct OrderedWords<'a> {
    column: &'a dyn Array,
}

/// Calls a macro with the Arrow type of primitive columns.
macro_rules! with_primitive {
    ($data_type:expr, $then:ident, $else:expr) => {
        match $data_type {
            DataType::Int8 => $then!(Int8Type, signed),
            DataType::Int16 => $then!(Int16Type, signed),
            DataType::Int32 => $then!(Int32Type, signed),
            DataType::Int64 => $then!(Int64Type, signed),
            DataType::UInt8 => $then!(UInt8Type, unsigned),
            DataType::UInt16 => $then!(UInt16Type, unsigned),
            DataType::UInt32 => $then!(UInt32Type, unsigned),
            DataType::UInt64 => $then!(UInt64Type, unsigned),
            DataType::Date32 => $then!(Date32Type, signed),
            DataType::Date64 => $then!(Date64Type, signed),
            DataType::Time32(TimeUnit::Second) => $then!(Time32SecondType, signed),
            DataType::Time32(_) => $then!(Time32MillisecondType, signed),
            DataType::Time64(TimeUnit::Microsecond) => $then!(Time64MicrosecondType, signed),
            DataType::Time64(_) => $then!(Time64NanosecondType, signed),
            DataType::Timestamp(TimeUnit::Second, _) => $then!(TimestampSecondType, signed),
            DataType::Timestamp(TimeUnit::Millisecond, _) => $then!(TimestampMillisecondType, signed),
            DataType::Timestamp(TimeUnit::Microsecond, _) => $then!(TimestampMicrosecondType, signed),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => $then!(TimestampNanosecondType, signed),
            DataType::Duration(TimeUnit::Second) => $then!(DurationSecondType, signed),
            DataType::Duration(TimeUnit::Millisecond) => $then!(DurationMillisecondType, signed),
            DataType::Duration(TimeUnit::Microsecond) => $then!(DurationMicrosecondType, signed),
            DataType::Duration(TimeUnit::Nanosecond) => $then!(DurationNanosecondType, signed),
            DataType::Decimal32(..) => $then!(Decimal32Type, signed),
            DataType::Decimal64(..) => $then!(Decimal64Type, signed),
            DataType::Decimal128(..) => $then!(Decimal128Type, decimal),
            _ => $else,
        }
    };
}

impl<'a> OrderedWords<'a> {
    /// Whether columns of this type can be indexed: integers, dates, times, timestamps, durations, decimals of up to 18 digits, text
    /// and binary values.
    pub fn supports(data_type: &DataType) -> bool {
        match data_type {
            DataType::Decimal64(digits, _) | DataType::Decimal128(digits, _) => *digits <= DIGITS,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => true,
            other => {
                macro_rules! primitive {
                    ($type:ty, $kind:ident) => {
                        true
                    };
                }
                with_primitive!(other, primitive, false)
            }
        }
    }

    /// The words of a column; `None` if its type is not [supported](Self::supports).
    pub fn of(column: &'a dyn Array) -> Option<Self> {
        Self::supports(column.data_type()).then_some(Self { column })
    }

    /// The values of a type that have these words, in their order. `None` if a word does not tell its value, as of text, or the type is
    /// not supported. `O(n)`.
    pub fn values(words: &[u64], data_type: &DataType) -> Option<ArrayRef> {
        macro_rules! primitive {
            ($type:ty, $kind:ident) => {{
                let values = words.iter().map(|word| value_of::$kind(*word) as <$type as ArrowPrimitiveType>::Native);
                let values = PrimitiveArray::<$type>::from_iter_values(values);
                Some(Arc::new(values.with_data_type(data_type.clone())))
            }};
        }
        if !Self::supports(data_type) {
            return None;
        }
        with_primitive!(data_type, primitive, None)
    }

    /// Passes on each row that is not null with its word, in the order of rows. `O(n)`.
    pub fn for_each(self, mut pass: impl FnMut(usize, u64)) {
        let column = self.column;
        macro_rules! primitive {
            ($type:ty, $kind:ident) => {
                numbers::<$type>(column, |value| $kind(value.into()), &mut pass)
            };
        }
        match column.data_type() {
            DataType::Utf8 => texts::<GenericStringType<i32>, i32>(column.as_bytes(), &mut pass),
            DataType::LargeUtf8 => texts::<GenericStringType<i64>, i64>(column.as_bytes(), &mut pass),
            DataType::Binary => texts::<GenericBinaryType<i32>, i32>(column.as_bytes(), &mut pass),
            DataType::LargeBinary => texts::<GenericBinaryType<i64>, i64>(column.as_bytes(), &mut pass),
            DataType::Utf8View => views(column.as_string_view(), &mut pass),
            DataType::BinaryView => views(column.as_binary_view(), &mut pass),
            other => with_primitive!(other, primitive, unreachable!("`of` has checked the type")),
        }
    }
}

#[inline(always)]
fn signed(value: i64) -> u64 {
    value.cast_unsigned() ^ SIGN
}

#[inline(always)]
fn unsigned(value: u64) -> u64 {
    value
}

/// Of a decimal of few enough digits.
#[inline(always)]
fn decimal(value: i128) -> u64 {
    signed(value as i64)
}

/// What words stand for.
mod value_of {
    use super::SIGN;

    #[inline(always)]
    pub(super) fn signed(word: u64) -> i64 {
        (word ^ SIGN).cast_signed()
    }

    #[inline(always)]
    pub(super) fn unsigned(word: u64) -> u64 {
        word
    }

    #[inline(always)]
    pub(super) fn decimal(word: u64) -> i64 {
        signed(word)
    }
}

fn numbers<T: ArrowPrimitiveType>(
    column: &dyn Array,
    word: impl Fn(T::Native) -> u64,
    pass: &mut impl FnMut(usize, u64),
) {
    let column = column.as_primitive::<T>();
    match column.nulls().filter(|nulls| nulls.null_count() > 0) {
        Some(nulls) => nulls.valid_indices().for_each(|row| pass(row, word(column.value(row)))),
        None => column.values().iter().enumerate().for_each(|(row, value)| pass(row, word(*value))),
    }
}

fn texts<T: ByteArrayType<Offset = O>, O: OffsetSizeTrait>(
    column: &GenericByteArray<T>,
    pass: &mut impl FnMut(usize, u64),
) {
    let (offsets, bytes) = (column.value_offsets(), column.value_data());
    for row in (0..column.len()).filter(|row| column.is_valid(*row)) {
        pass(row, prefix(&bytes[offsets[row].as_usize()..offsets[row + 1].as_usize()]));
    }
}

fn views<T: ByteViewType>(column: &GenericByteViewArray<T>, pass: &mut impl FnMut(usize, u64)) {
    for row in (0..column.len()).filter(|row| column.is_valid(*row)) {
        pass(row, prefix(column.value(row).as_ref()));
    }
}

/// The first bytes, filled up with zeros.
fn prefix(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let length = bytes.len().min(8);
    word[..length].copy_from_slice(&bytes[..length]);
    u64::from_be_bytes(word)
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        Decimal128Array, Int8Array, Int64Array, LargeBinaryArray, StringArray, StringViewArray, TimestampSecondArray,
        UInt64Array,
    };

    use super::*;

    fn words(column: &ArrayRef) -> Vec<(usize, u64)> {
        let mut all = Vec::new();
        OrderedWords::of(column).unwrap().for_each(|row, word| all.push((row, word)));
        all
    }

    #[test]
    fn words_are_in_the_order_of_values() {
        let decimals = Decimal128Array::from(vec![-999_999_999_999_999_999, -1, 0, 7, 999_999_999_999_999_999]);
        let columns: [ArrayRef; 8] = [
            Arc::new(Int8Array::from(vec![i8::MIN, -1, 0, 1, i8::MAX])),
            Arc::new(Int64Array::from(vec![i64::MIN, -1, 0, 1, i64::MAX])),
            Arc::new(UInt64Array::from(vec![0, 1, u64::MAX >> 1, 1 << 63, u64::MAX])),
            Arc::new(TimestampSecondArray::from(vec![-5, 0, 3])),
            Arc::new(decimals.with_precision_and_scale(18, 2).unwrap()),
            Arc::new(StringArray::from(vec!["", "a", "ab", "b", "zürich"])),
            Arc::new(StringViewArray::from(vec!["", "a", "aaaaaaaa and more", "b"])),
            Arc::new(LargeBinaryArray::from(vec![&b"\x00\x01"[..], b"\x01", b"\xff\xff"])),
        ];
        for column in columns {
            let words = words(&column);
            assert_eq!(words.len(), column.len(), "{column:?}");
            assert!(words.windows(2).all(|pair| pair[0].1 < pair[1].1), "{column:?}: {words:?}");
            let words: Vec<u64> = words.into_iter().map(|(_, word)| word).collect();
            let values = OrderedWords::values(&words, column.data_type());
            assert_eq!(values.is_some(), column.data_type().is_primitive(), "{column:?}");
            assert!(values.is_none_or(|values| values.as_ref() == column.as_ref()), "{column:?}");
        }
    }

    #[test]
    fn nulls_have_no_words() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(4), None, Some(-4)]));
        assert_eq!(words(&numbers), [(1, SIGN + 4), (3, SIGN - 4)]);
        let texts: ArrayRef = Arc::new(StringArray::from(vec![None, Some("\u{1}")]));
        assert_eq!(words(&texts), [(1, 1 << 56)]);
    }

    #[test]
    fn what_no_word_holds_is_not_supported() {
        for data_type in [
            DataType::Float64,
            DataType::Boolean,
            DataType::Decimal128(19, 0),
            DataType::Decimal256(5, 0),
            DataType::Null,
            DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into()),
        ] {
            assert!(!OrderedWords::supports(&data_type), "{data_type}");
            assert!(OrderedWords::values(&[SIGN], &data_type).is_none(), "{data_type}");
        }
    }
}
