//! Columns as the numbers that Arrow stores.

use arrow::array::{Array, ArrayRef};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};

use crate::keys::bits_of;

/// The values of a column, by type.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Values {
    I8(ScalarBuffer<i8>),
    I16(ScalarBuffer<i16>),
    I32(ScalarBuffer<i32>),
    I64(ScalarBuffer<i64>),
    U8(ScalarBuffer<u8>),
    U16(ScalarBuffer<u16>),
    U32(ScalarBuffer<u32>),
    U64(ScalarBuffer<u64>),
    I128(ScalarBuffer<i128>),
}

/// Evaluates an expression with the values of a column, for any type.
#[macro_export]
macro_rules! with_values {
    ($column:expr, $values:ident => $work:expr) => {
        match $column {
            $crate::selection::column::Values::I8($values) => $work,
            $crate::selection::column::Values::I16($values) => $work,
            $crate::selection::column::Values::I32($values) => $work,
            $crate::selection::column::Values::I64($values) => $work,
            $crate::selection::column::Values::U8($values) => $work,
            $crate::selection::column::Values::U16($values) => $work,
            $crate::selection::column::Values::U32($values) => $work,
            $crate::selection::column::Values::U64($values) => $work,
            $crate::selection::column::Values::I128($values) => $work,
        }
    };
}
/// A number type of columns.
pub trait Number: ArrowNativeType + Ord + Into<i128> + TryFrom<i128> {
    /// The smallest value of the type.
    const LEAST: Self;
    /// The largest value of the type.
    const GREATEST: Self;

    /// The part of a range that the type can represent; `None` if it is empty.
    fn range(lowest: i128, highest: i128) -> Option<(Self, Self)> {
        let lowest = lowest.max(Self::LEAST.into());
        let highest = highest.min(Self::GREATEST.into());
        if lowest > highest {
            return None;
        }
        Some((Self::try_from(lowest).ok()?, Self::try_from(highest).ok()?))
    }
}

macro_rules! numbers {
    ($($number:ty),+) => {
        $(impl Number for $number {
            const LEAST: Self = Self::MIN;
            const GREATEST: Self = Self::MAX;
        })+
    };
}
numbers!(i8, i16, i32, i64, u8, u16, u32, u64, i128);

/// Widens a number of any type to 128 bits.
pub(super) fn widened(number: impl Into<i128>) -> i128 {
    number.into()
}

/// A column of a batch.
#[derive(Debug, Clone)]
pub struct Column {
    /// The values; those of nulls are arbitrary.
    pub values: Values,
    /// `None` if no value is null.
    pub nulls: Option<NullBuffer>,
}

/// Whether selections support this column type: integers, dates, times, timestamps, durations, and decimals of 128 bits.
pub fn takes_type(data_type: &DataType) -> bool {
    match data_type {
        DataType::Date32 | DataType::Date64 | DataType::Decimal128(..) => true,
        DataType::Time32(_) | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_) => true,
        other => other.is_integer(),
    }
}

impl Column {
    /// Creates a column of a type that [`takes_type`] accepts; `None` for other types.
    pub fn new(array: &ArrayRef) -> Option<Self> {
        if !takes_type(array.data_type()) {
            return None;
        }
        let values = match array.data_type() {
            DataType::Int8 => Values::I8(bits_of(array)),
            DataType::Int16 => Values::I16(bits_of(array)),
            DataType::UInt8 => Values::U8(bits_of(array)),
            DataType::UInt16 => Values::U16(bits_of(array)),
            DataType::UInt32 => Values::U32(bits_of(array)),
            DataType::UInt64 => Values::U64(bits_of(array)),
            DataType::Decimal128(..) => Values::I128(bits_of(array)),
            other if other.primitive_width() == Some(4) => Values::I32(bits_of(array)),
            _ => Values::I64(bits_of(array)),
        };
        Some(Self { values, nulls: array.nulls().filter(|nulls| nulls.null_count() > 0).cloned() })
    }
}

/// The first value of an array as a number; `None` if it is null, or of a type that selections do not support.
pub fn constant(array: &ArrayRef) -> Option<i128> {
    let column = Column::new(array).filter(|column| column.nulls.is_none())?;
    with_values!(&column.values, values => values.first().copied().map(widened))
}
