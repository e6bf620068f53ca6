//! Key columns of numbers, dates, times and truth values.

use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, BooleanArray, make_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};

use super::row_keys::RowKeys;
use super::scatter::values_of;
use crate::error::Result;
use crate::keys::{Packed, append_bits, append_column, bits_of};

/// How the values of a column are packed. A value takes only as many bits as the range of the values that have been seen needs, and some more.
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    data_type: DataType,
    /// Bits of a value of its type.
    width: usize,
    /// The values that it can have now; `None` if it has had none.
    range: Option<Range>,
}

/// The values from `least` on that differ from it in the lowest `bits`.
#[derive(Debug, Clone, Copy)]
struct Range {
    least: i128,
    bits: usize,
}

impl Range {
    /// All values of this many bits, as they are.
    fn all(width: usize) -> Self {
        Self { least: 0, bits: width }
    }

    /// `values`, and half as many again on each side, but no more than the type has.
    fn around(values: &RangeInclusive<i128>, width: usize) -> Self {
        let span = values.end().checked_sub(*values.start()).filter(|span| *span < i128::MAX / 4);
        let Some(span) = span else { return Self::all(width) };
        let bits = (i128::BITS - (2 * span).leading_zeros()) as usize;
        if bits >= width {
            return Self::all(width);
        }
        Self { least: values.start().saturating_sub(span / 2), bits }
    }
}

/// Evaluates an expression with the values of a column, as numbers.
macro_rules! with_values {
    (@$type:ty, $values:ident: $array:expr => $work:expr) => {{
        let $values = bits_of::<$type>($array);
        $work
    }};
    ($column:expr, $values:ident: $array:expr => $work:expr) => {
        match ($column.width, $column.data_type.is_unsigned_integer()) {
            (8, true) => with_values!(@u8, $values: $array => $work),
            (8, false) => with_values!(@i8, $values: $array => $work),
            (16, true) => with_values!(@u16, $values: $array => $work),
            (16, false) => with_values!(@i16, $values: $array => $work),
            (32, true) => with_values!(@u32, $values: $array => $work),
            (32, false) => with_values!(@i32, $values: $array => $work),
            (64, true) => with_values!(@u64, $values: $array => $work),
            (64, false) => with_values!(@i64, $values: $array => $work),
            _ => with_values!(@i128, $values: $array => $work),
        }
    };
}

impl Numbers {
    /// `None` for other types, floats, because two of equal value may differ, and intervals, because equal ones may.
    pub fn try_new(data_type: &DataType) -> Option<Self> {
        let width = match data_type {
            DataType::Boolean => 1,
            DataType::Interval(_) | DataType::Decimal256(..) => return None,
            other if other.is_floating() => return None,
            other => other.primitive_width()? * 8,
        };
        let range = (width == 1).then(|| Range::all(width));
        Some(Self { data_type: data_type.clone(), width, range })
    }

    /// Bits of a value of its type.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Bits of a value.
    pub fn bits(&self) -> usize {
        self.range.map_or(0, |range| range.bits)
    }

    /// Packs values as they are.
    pub fn take_all(&mut self) {
        self.range = Some(Range::all(self.width));
    }

    /// Packs these values too; `None` if they are already.
    pub fn widened(&self, values: &ArrayRef) -> Option<Self> {
        let range = match self.range {
            None => Range::around(&self.least_and_most(values)?, self.width),
            Some(range) if range.bits == self.width => return None,
            Some(range) => {
                let found = self.least_and_most(values)?;
                let (least, most) = (range.least, range.least.saturating_add((1 << range.bits) - 1));
                if least <= *found.start() && *found.end() <= most {
                    return None;
                }
                Range::around(&(least.min(*found.start())..=most.max(*found.end())), self.width)
            }
        };
        Some(Self { range: Some(range), ..self.clone() })
    }

    /// `None` if all values are null.
    fn least_and_most(&self, column: &ArrayRef) -> Option<RangeInclusive<i128>> {
        let nulls = column.nulls().filter(|nulls| nulls.null_count() > 0);
        with_values!(self, values: column => match nulls {
            None => least_and_most(values.iter().copied()),
            Some(nulls) => least_and_most(nulls.valid_indices().map(|row| values[row])),
        })
    }

    /// Appends values of its range to words; zeros for nulls.
    pub fn append<W: Packed>(&self, words: &mut [W], values: &ArrayRef) {
        let Some(range) = self.range.filter(|range| range.bits < self.width) else {
            // Nulls alone have no bits, until a value comes.
            if self.range.is_some() {
                append_column(words, values);
            }
            return;
        };
        macro_rules! append {
            ($type:ty) => {{
                // Only the lower bits differ from those of `least`.
                let least = range.least as $type;
                append_bits(words, values, range.bits, |bits: $type| u128::from(bits.wrapping_sub(least)))
            }};
        }
        match self.width {
            8 => append!(u8),
            16 => append!(u16),
            32 => append!(u32),
            64 => append!(u64),
            _ => append_bits(words, values, range.bits, |bits: i128| bits.wrapping_sub(range.least) as u128),
        }
    }

    /// The values of keys, in which they have `below` bits below them.
    pub fn unpack<W: Packed>(&self, keys: &[W], below: usize, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let Range { least, bits } = self.range.unwrap_or(Range { least: 0, bits: 0 });
        self.column(keys.iter().map(|key| least.wrapping_add(key.bits_at(below, bits) as i128)), nulls)
    }

    fn column(&self, values: impl ExactSizeIterator<Item = i128>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let len = values.len();
        let values = match self.width {
            1 => return Ok(Arc::new(BooleanArray::new(values.map(|value| value == 1).collect(), nulls))),
            8 => buffer(values.map(|value| value as u8)),
            16 => buffer(values.map(|value| value as u16)),
            32 => buffer(values.map(|value| value as u32)),
            64 => buffer(values.map(|value| value as u64)),
            _ => buffer(values),
        };
        let data = ArrayData::builder(self.data_type.clone()).len(len).add_buffer(values).nulls(nulls);
        Ok(make_array(data.build()?))
    }

    /// Bytes of a value in a row.
    pub fn row_bytes(&self) -> usize {
        self.width.div_ceil(8)
    }

    /// Writes values to rows from `places` on, which move behind them.
    pub fn write(&self, values: &ArrayRef, rows: &mut RowKeys, places: &mut [usize]) {
        match self.width {
            1 => {
                let values = BooleanArray::from(values.to_data());
                let bytes = rows.bytes_mut();
                for (row, place) in places.iter_mut().enumerate() {
                    bytes[*place] = u8::from(values.is_valid(row) && values.value(row));
                    *place += 1;
                }
            }
            8 => write::<1>(values, rows, places),
            16 => write::<2>(values, rows, places),
            32 => write::<4>(values, rows, places),
            64 => write::<8>(values, rows, places),
            _ => write::<16>(values, rows, places),
        }
    }

    /// Reads values of rows from `places` on, which move behind them.
    pub fn read(&self, rows: &RowKeys, places: &mut [usize], nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        match self.width {
            1 | 8 => self.column(read(rows, places).map(|value| u8::from_ne_bytes(value).into()), nulls),
            16 => self.column(read(rows, places).map(|value| u16::from_ne_bytes(value).into()), nulls),
            32 => self.column(read(rows, places).map(|value| u32::from_ne_bytes(value).into()), nulls),
            64 => self.column(read(rows, places).map(|value| u64::from_ne_bytes(value).into()), nulls),
            _ => self.column(read(rows, places).map(i128::from_ne_bytes), nulls),
        }
    }
}

/// In one pass over values: over references, each comparison would be a call.
fn least_and_most<T: Copy + Ord + Into<i128>>(mut values: impl Iterator<Item = T>) -> Option<RangeInclusive<i128>> {
    let first = values.next()?;
    let (least, most) = values.fold((first, first), |(least, most), value| (least.min(value), most.max(value)));
    Some(least.into()..=most.into())
}

fn buffer<T: ArrowNativeType>(values: impl Iterator<Item = T>) -> Buffer {
    Buffer::from_vec(values.collect::<Vec<T>>())
}

fn write<const BYTES: usize>(values: &ArrayRef, rows: &mut RowKeys, places: &mut [usize]) {
    let bytes = rows.bytes_mut();
    let data = values.to_data();
    for (row, (place, value)) in places.iter_mut().zip(values_of::<BYTES>(&data)).enumerate() {
        // All nulls have equal bytes.
        if values.is_valid(row) {
            bytes[*place..*place + BYTES].copy_from_slice(value);
        }
        *place += BYTES;
    }
}

fn read<const BYTES: usize>(rows: &RowKeys, places: &mut [usize]) -> impl ExactSizeIterator<Item = [u8; BYTES]> {
    let bytes = rows.bytes();
    places.iter_mut().map(|place| {
        let mut value = [0; BYTES];
        value.copy_from_slice(&bytes[*place..*place + BYTES]);
        *place += BYTES;
        value
    })
}
