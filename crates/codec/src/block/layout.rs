//! How the arrays of a type lie in a block.

use arrow::datatypes::{DataType, Field, Fields, IntervalUnit, UnionFields, UnionMode};

/// Bytes of a text that a view holds itself, at most.
pub(super) const MAX_INLINE: u32 = 12;

/// What the sections of an array are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout<'a> {
    /// None.
    Null,
    Bits,
    /// Integers of 8 to 64 bits.
    Integers(IntegerType),
    /// Integers of 128 bits.
    WideIntegers,
    /// Values of as many bytes.
    Fixed(usize),
    /// Texts between offsets.
    Bytes(OffsetType),
    Views,
    /// Lists between offsets.
    Lists(OffsetType, &'a Field),
    /// Lists of as many values.
    FixedLists(&'a Field, usize),
    Struct(&'a Fields),
    /// Codes, and values of a type.
    Dictionary(IntegerType, &'a DataType),
    /// Lists with an offset and a length each.
    ListViews(OffsetType, &'a Field),
    /// Ends of runs, and values of a type.
    Runs(IntegerType, &'a Field),
    Union(&'a UnionFields, UnionMode),
}

/// A type of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IntegerType {
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

/// A type of offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OffsetType {
    I32,
    I64,
}

impl IntegerType {
    /// That of numbers, codes or ends of runs of this type, which are integers.
    fn of(data_type: &DataType) -> Self {
        match data_type {
            DataType::Int8 => Self::I8,
            DataType::Int16 => Self::I16,
            DataType::Int32 => Self::I32,
            DataType::UInt8 => Self::U8,
            DataType::UInt16 => Self::U16,
            DataType::UInt32 => Self::U32,
            DataType::UInt64 => Self::U64,
            _ => Self::I64,
        }
    }
}

impl<'a> Layout<'a> {
    pub fn of(data_type: &'a DataType) -> Self {
        match data_type {
            DataType::Null => Self::Null,
            DataType::Boolean => Self::Bits,
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => {
                Self::Integers(IntegerType::of(data_type))
            }
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => {
                Self::Integers(IntegerType::of(data_type))
            }
            DataType::Date32
            | DataType::Time32(_)
            | DataType::Decimal32(..)
            | DataType::Interval(IntervalUnit::YearMonth) => Self::Integers(IntegerType::I32),
            DataType::Date64
            | DataType::Time64(_)
            | DataType::Timestamp(..)
            | DataType::Duration(_)
            | DataType::Decimal64(..) => Self::Integers(IntegerType::I64),
            DataType::Decimal128(..) => Self::WideIntegers,
            DataType::Float16 => Self::Fixed(2),
            DataType::Float32 => Self::Fixed(4),
            DataType::Float64 | DataType::Interval(IntervalUnit::DayTime) => Self::Fixed(8),
            DataType::Interval(IntervalUnit::MonthDayNano) => Self::Fixed(16),
            DataType::Decimal256(..) => Self::Fixed(32),
            DataType::FixedSizeBinary(width) => Self::Fixed(*width as usize),
            DataType::Utf8 | DataType::Binary => Self::Bytes(OffsetType::I32),
            DataType::LargeUtf8 | DataType::LargeBinary => Self::Bytes(OffsetType::I64),
            DataType::Utf8View | DataType::BinaryView => Self::Views,
            DataType::List(values) | DataType::Map(values, _) => Self::Lists(OffsetType::I32, values),
            DataType::LargeList(values) => Self::Lists(OffsetType::I64, values),
            DataType::FixedSizeList(values, length) => Self::FixedLists(values, *length as usize),
            DataType::Struct(fields) => Self::Struct(fields),
            DataType::Dictionary(codes, values) => Self::Dictionary(IntegerType::of(codes), values),
            DataType::ListView(values) => Self::ListViews(OffsetType::I32, values),
            DataType::LargeListView(values) => Self::ListViews(OffsetType::I64, values),
            DataType::RunEndEncoded(ends, values) => Self::Runs(IntegerType::of(ends.data_type()), values),
            DataType::Union(fields, mode) => Self::Union(fields, *mode),
        }
    }

    /// Whether a bitmap may come before the other sections.
    pub fn has_nulls(self) -> bool {
        !matches!(self, Self::Null | Self::Runs(..) | Self::Union(..))
    }
}
