//! Packs key columns into words or rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::*;
use arrow::row::{RowConverter, Rows, SortField};
use foldhash::quality::FixedState;
use std::hash::BuildHasher;

use super::word::Word;
use crate::error::Result;

/// The seed of the hash of keys in row format.
const ROW_SEED: u64 = 0x6A09_E667_F3BC_C908;

/// Converts the keys of a join to words or bytes; both sides of a join share one codec.
#[derive(Debug)]
pub struct KeyCodec {
    layout: Layout,
    /// Whether two nulls are equal; if not, a row with a null among its keys has no match.
    null_equal: bool,
    /// Whether the values of the only key column are used as the packed keys.
    is_column: bool,
}

#[derive(Debug)]
enum Layout {
    Word64,
    Word128,
    Rows(RowConverter),
}

/// The keys of a batch of rows.
#[derive(Debug)]
pub struct Keys {
    /// The packed keys, one per row; those of rows that cannot match are arbitrary.
    pub data: KeyData,
    /// The rows that can match; `None` if all can.
    pub matchable: Option<NullBuffer>,
}

/// Packed keys, one per row.
#[derive(Debug)]
pub enum KeyData {
    /// Keys of at most 64 bits. A single 64-bit key column is used without a copy.
    Word64(ScalarBuffer<u64>),
    /// Keys of at most 128 bits.
    Word128(Vec<[u64; 2]>),
    /// All other keys.
    Rows(Rows),
}

impl KeyCodec {
    /// Chooses a layout for keys of these types.
    ///
    /// # Errors
    /// Fails for types that Arrow's row format does not support; check with [`KeyCodec::supports`].
    pub fn try_new(types: &[DataType], null_equal: bool) -> Result<Self> {
        let null_bit = usize::from(null_equal);
        let bits =
            types.iter().map(|data_type| word_bits(data_type).map(|bits| bits + null_bit)).sum::<Option<usize>>();
        let layout = match bits {
            Some(bits) if bits <= 64 => Layout::Word64,
            Some(bits) if bits <= 128 => Layout::Word128,
            _ => Layout::Rows(RowConverter::new(types.iter().cloned().map(SortField::new).collect())?),
        };
        let is_column = !null_equal && matches!(types, [data_type] if is_word(data_type));
        Ok(Self { layout, null_equal, is_column })
    }

    /// Whether keys of these types can be joined.
    pub fn supports(types: &[DataType]) -> bool {
        RowConverter::supports_fields(&types.iter().cloned().map(SortField::new).collect::<Vec<_>>())
    }

    /// Packs the key columns of a batch. All columns must have the same length, and the types that the codec was created for.
    pub fn encode(&self, columns: &[ArrayRef]) -> Result<Keys> {
        let matchable = if self.null_equal {
            None
        } else {
            columns.iter().fold(None, |nulls, column| {
                NullBuffer::union(
                    nulls.as_ref(),
                    column.logical_nulls().filter(|nulls| nulls.null_count() > 0).as_ref(),
                )
            })
        };
        let data = match &self.layout {
            Layout::Word64 => KeyData::Word64(match columns {
                [column] if self.is_column => values_of_word(column),
                [column] if !self.null_equal && is_half_word(column.data_type()) => {
                    let data = column.to_data();
                    let values = ScalarBuffer::<u32>::new(data.buffers()[0].clone(), data.offset(), data.len());
                    values.iter().map(|value| u64::from(*value)).collect()
                }
                _ => self.pack::<u64>(columns).into(),
            }),
            Layout::Word128 => {
                let packed = self.pack::<u128>(columns);
                KeyData::Word128(packed.into_iter().map(|word| [word as u64, (word >> 64) as u64]).collect())
            }
            Layout::Rows(converter) => {
                let columns: Vec<_> = columns.iter().map(normalize_zero).collect();
                KeyData::Rows(converter.convert_columns(&columns)?)
            }
        };
        Ok(Keys { data, matchable })
    }

    /// Whether packed keys have at most 64 bits.
    pub fn is_word(&self) -> bool {
        matches!(self.layout, Layout::Word64)
    }

    /// Bytes of a packed key; `None` for keys in row format, which vary in size.
    pub fn word_bytes(&self) -> Option<usize> {
        match self.layout {
            Layout::Word64 => Some(size_of::<u64>()),
            Layout::Word128 => Some(size_of::<[u64; 2]>()),
            Layout::Rows(_) => None,
        }
    }

    /// Bytes of a packed key, 0 if the column's values are used without a copy; `None` for keys in row format.
    pub fn packed_bytes(&self) -> Option<usize> {
        if self.is_column { Some(0) } else { self.word_bytes() }
    }

    fn pack<W: Packed>(&self, columns: &[ArrayRef]) -> Vec<W> {
        let rows = columns.first().map_or(0, |column| column.len());
        let mut words = vec![W::ZERO; rows];
        for column in columns {
            append_column(&mut words, column);
            if self.null_equal {
                let nulls = column.logical_nulls();
                for (row, word) in words.iter_mut().enumerate() {
                    *word = word.append(W::from_bool(nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))), 1);
                }
            }
        }
        words
    }
}

impl Keys {
    /// The number of rows.
    pub fn len(&self) -> usize {
        match &self.data {
            KeyData::Word64(words) => words.len(),
            KeyData::Word128(words) => words.len(),
            KeyData::Rows(rows) => rows.num_rows(),
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the row can match at all.
    pub fn is_matchable(&self, row: usize) -> bool {
        self.matchable.as_ref().is_none_or(|matchable| matchable.is_valid(row))
    }

    /// Whether keys are in row format.
    pub fn is_row_format(&self) -> bool {
        matches!(self.data, KeyData::Rows(_))
    }

    /// Bytes that the key of a row takes in a hash table besides its entry.
    pub fn row_bytes(&self, row: usize) -> usize {
        match &self.data {
            KeyData::Word64(_) | KeyData::Word128(_) => 0,
            KeyData::Rows(rows) => rows.row(row).data().len() + size_of::<usize>(),
        }
    }

    /// Bytes that the keys of all rows take in a hash table besides their entries.
    pub fn bytes(&self) -> usize {
        match &self.data {
            KeyData::Word64(_) | KeyData::Word128(_) => 0,
            KeyData::Rows(rows) => rows.size(),
        }
    }

    /// Whether a key equals one of the other side, which must come from the same codec.
    pub fn are_equal(&self, row: usize, other: &Self, other_row: usize) -> bool {
        match (&self.data, &other.data) {
            (KeyData::Word64(words), KeyData::Word64(others)) => words[row] == others[other_row],
            (KeyData::Word128(words), KeyData::Word128(others)) => words[row] == others[other_row],
            (KeyData::Rows(rows), KeyData::Rows(others)) => rows.row(row).data() == others.row(other_row).data(),
            _ => unreachable!("both sides of a join share one key codec"),
        }
    }

    /// The hash of each key; those of rows that cannot match are arbitrary.
    pub fn hashes(&self) -> Vec<u64> {
        match &self.data {
            KeyData::Word64(words) => words.iter().map(|word| word.hash()).collect(),
            KeyData::Word128(words) => words.iter().map(|word| word.hash()).collect(),
            KeyData::Rows(rows) => rows.iter().map(|row| hash_bytes(row.data())).collect(),
        }
    }
}

/// The hash of a key in row format.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    FixedState::with_seed(ROW_SEED).hash_one(bytes)
}

/// Bits that a value of this type takes in a word, if it has a fixed width of at most 128 bits.
fn word_bits(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        DataType::Null
        | DataType::Decimal256(_, _)
        | DataType::Dictionary(_, _)
        | DataType::FixedSizeBinary(_)
        | DataType::RunEndEncoded(_, _) => None,
        other => other.primitive_width().map(|bytes| bytes * 8),
    }
}

/// Whether the values of a column can be used as words without a copy: 64-bit values other than floats and intervals.
fn is_word(data_type: &DataType) -> bool {
    data_type.primitive_width() == Some(8) && !data_type.is_floating() && !matches!(data_type, DataType::Interval(_))
}

/// Like `is_word`, for 32-bit values, which are only widened.
fn is_half_word(data_type: &DataType) -> bool {
    data_type.primitive_width() == Some(4) && !data_type.is_floating()
}

/// The values of a column as words, without a copy.
fn values_of_word(column: &ArrayRef) -> ScalarBuffer<u64> {
    let data = column.to_data();
    ScalarBuffer::new(data.buffers()[0].clone(), data.offset(), data.len())
}

/// An integer that key columns are packed into.
trait Packed: Copy {
    const ZERO: Self;
    fn from_bool(value: bool) -> Self;
    fn append(self, value: Self, bits: usize) -> Self;
    fn from_u128(value: u128) -> Self;
}

macro_rules! packed {
    ($word:ty) => {
        impl Packed for $word {
            const ZERO: Self = 0;
            #[inline(always)]
            fn from_bool(value: bool) -> Self {
                Self::from(value)
            }
            #[inline(always)]
            fn append(self, value: Self, bits: usize) -> Self {
                self.checked_shl(bits as u32).unwrap_or(0) | value
            }
            #[inline(always)]
            fn from_u128(value: u128) -> Self {
                value as Self
            }
        }
    };
}
packed!(u64);
packed!(u128);

/// Appends the bits of a column to each word. Nulls append zeros, so that two nulls are equal words.
fn append_column<W: Packed>(words: &mut [W], column: &ArrayRef) {
    macro_rules! append {
        ($type:ty, $value:ident => $bits:expr) => {
            append_primitive(words, column.as_primitive::<$type>(), |$value| $bits as u128)
        };
    }
    match column.data_type() {
        DataType::Boolean => {
            let values = column.as_boolean();
            for (row, word) in words.iter_mut().enumerate() {
                *word = word.append(W::from_bool(values.is_valid(row) && values.value(row)), 1);
            }
        }
        DataType::Int8 => append!(Int8Type, value => value as u8),
        DataType::Int16 => append!(Int16Type, value => value as u16),
        DataType::Int32 => append!(Int32Type, value => value as u32),
        DataType::Int64 => append!(Int64Type, value => value as u64),
        DataType::UInt8 => append!(UInt8Type, value => value),
        DataType::UInt16 => append!(UInt16Type, value => value),
        DataType::UInt32 => append!(UInt32Type, value => value),
        DataType::UInt64 => append!(UInt64Type, value => value),
        // SQL treats -0.0 and 0.0 as equal; a value is one of the two if all its bits except the sign are zero.
        DataType::Float16 => append!(Float16Type, value => if value.to_bits() << 1 == 0 { 0 } else { value.to_bits() }),
        DataType::Float32 => append!(Float32Type, value => if value.to_bits() << 1 == 0 { 0 } else { value.to_bits() }),
        DataType::Float64 => append!(Float64Type, value => if value.to_bits() << 1 == 0 { 0 } else { value.to_bits() }),
        DataType::Date32 => append!(Date32Type, value => value as u32),
        DataType::Date64 => append!(Date64Type, value => value as u64),
        DataType::Time32(TimeUnit::Second) => append!(Time32SecondType, value => value as u32),
        DataType::Time32(_) => append!(Time32MillisecondType, value => value as u32),
        DataType::Time64(TimeUnit::Microsecond) => append!(Time64MicrosecondType, value => value as u64),
        DataType::Time64(_) => append!(Time64NanosecondType, value => value as u64),
        DataType::Timestamp(TimeUnit::Second, _) => append!(TimestampSecondType, value => value as u64),
        DataType::Timestamp(TimeUnit::Millisecond, _) => append!(TimestampMillisecondType, value => value as u64),
        DataType::Timestamp(TimeUnit::Microsecond, _) => append!(TimestampMicrosecondType, value => value as u64),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => append!(TimestampNanosecondType, value => value as u64),
        DataType::Duration(TimeUnit::Second) => append!(DurationSecondType, value => value as u64),
        DataType::Duration(TimeUnit::Millisecond) => append!(DurationMillisecondType, value => value as u64),
        DataType::Duration(TimeUnit::Microsecond) => append!(DurationMicrosecondType, value => value as u64),
        DataType::Duration(TimeUnit::Nanosecond) => append!(DurationNanosecondType, value => value as u64),
        DataType::Interval(IntervalUnit::YearMonth) => append!(IntervalYearMonthType, value => value as u32),
        DataType::Interval(IntervalUnit::DayTime) => append!(
            IntervalDayTimeType,
            value => (u64::from(value.days as u32) << 32) | u64::from(value.milliseconds as u32)
        ),
        DataType::Interval(IntervalUnit::MonthDayNano) => append!(
            IntervalMonthDayNanoType,
            value => (u128::from(value.months as u32) << 96)
                | (u128::from(value.days as u32) << 64)
                | u128::from(value.nanoseconds as u64)
        ),
        DataType::Decimal32(_, _) => append!(Decimal32Type, value => value as u32),
        DataType::Decimal64(_, _) => append!(Decimal64Type, value => value as u64),
        DataType::Decimal128(_, _) => append!(Decimal128Type, value => value as u128),
        other => unreachable!("keys of type {other} take the row format"),
    }
}

fn append_primitive<T: ArrowPrimitiveType, W: Packed>(
    words: &mut [W],
    column: &PrimitiveArray<T>,
    bits: impl Fn(T::Native) -> u128,
) {
    let width = size_of::<T::Native>() * 8;
    match column.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => {
            for (word, value) in words.iter_mut().zip(column.values()) {
                *word = word.append(W::from_u128(bits(*value)), width);
            }
        }
        Some(nulls) => {
            for (row, (word, value)) in words.iter_mut().zip(column.values()).enumerate() {
                let value = if nulls.is_valid(row) { bits(*value) } else { 0 };
                *word = word.append(W::from_u128(value), width);
            }
        }
    }
}

/// Turns -0.0 into 0.0, because the row format distinguishes them.
fn normalize_zero(column: &ArrayRef) -> ArrayRef {
    macro_rules! normalize {
        ($type:ty) => {{
            let zero = <$type as ArrowPrimitiveType>::Native::default();
            let positive = |value: <$type as ArrowPrimitiveType>::Native| {
                if value.to_bits() << 1 == 0 { zero } else { value }
            };
            Arc::new(column.as_primitive::<$type>().unary::<_, $type>(positive))
        }};
    }
    match column.data_type() {
        DataType::Float16 => normalize!(Float16Type),
        DataType::Float32 => normalize!(Float32Type),
        DataType::Float64 => normalize!(Float64Type),
        _ => Arc::clone(column),
    }
}
