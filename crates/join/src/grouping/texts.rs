//! Key columns of texts and bytes.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, BinaryViewArray, BinaryViewBuilder, GenericBinaryArray,
    GenericStringArray, LargeBinaryArray, LargeBinaryBuilder, MAX_INLINE_VIEW_LEN, OffsetSizeTrait,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;

use super::row_keys::RowKeys;
use crate::error::{JoinError, Result};
use crate::keys::Packed;

/// The longest text in words, in bytes. Its length needs 5 bits of 192.
const LONGEST: usize = 23;

/// Bytes that are appended to words together.
const APPENDED: usize = 16;

/// Bytes of a text's length in a row.
const LENGTH: usize = 4;

/// The length of a null in a row. No text is that long.
const NULL: u32 = u32::MAX;

/// How the values of a column are packed: short ones as their bytes, with zeros up to the longest that has been seen, below their length.
#[derive(Debug, Clone)]
pub(super) struct Texts {
    data_type: DataType,
    /// Bytes of the longest value; `None` if there has been none.
    longest: Option<usize>,
}

/// The values of a column.
pub(super) enum Values {
    Binary(BinaryArray),
    LargeBinary(LargeBinaryArray),
    View(BinaryViewArray),
}

/// Evaluates an expression with the values of a column, as bytes.
macro_rules! with_values {
    ($of:expr, $values:ident => $work:expr) => {
        match $of {
            Values::Binary($values) => $work,
            Values::LargeBinary($values) => $work,
            Values::View($values) => $work,
        }
    };
}

impl Values {
    pub fn of(column: &dyn Array) -> Self {
        match column.data_type() {
            DataType::Utf8 => Self::Binary(column.as_string::<i32>().clone().into()),
            DataType::LargeUtf8 => Self::LargeBinary(column.as_string::<i64>().clone().into()),
            DataType::Utf8View => Self::View(column.as_string_view().clone().to_binary_view()),
            DataType::Binary => Self::Binary(column.as_binary::<i32>().clone()),
            DataType::LargeBinary => Self::LargeBinary(column.as_binary::<i64>().clone()),
            _ => Self::View(column.as_binary_view().clone()),
        }
    }
}

impl Values {
    /// The bytes of a value; `None` for a null.
    pub fn get(&self, row: usize) -> Option<&[u8]> {
        with_values!(self, values => values.is_valid(row).then(|| values.value(row)))
    }
}

impl Texts {
    /// Whether values of this type are texts or bytes.
    pub fn are_of(data_type: &DataType) -> bool {
        use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
        matches!(data_type, Binary | BinaryView | LargeBinary | LargeUtf8 | Utf8 | Utf8View)
    }

    pub fn try_new(data_type: &DataType) -> Option<Self> {
        Self::are_of(data_type).then(|| Self { data_type: data_type.clone(), longest: None })
    }

    /// Bits of a value; `None` if one is too long.
    pub fn bits(&self) -> Option<usize> {
        let Some(longest) = self.longest else { return Some(0) };
        (longest <= LONGEST).then(|| longest * 8 + length_bits(longest))
    }

    /// Packs these values too; `None` if they are already.
    pub fn widened(&self, values: &ArrayRef) -> Option<Self> {
        if self.longest.is_some_and(|longest| longest > LONGEST) {
            return None;
        }
        let longest = longest(values)?;
        let is_new = self.longest.is_none_or(|before| longest > before);
        is_new.then(|| Self { longest: Some(longest), ..self.clone() })
    }

    /// Appends short values to words, their lengths first; zeros for nulls.
    pub fn append<W: Packed>(&self, words: &mut [W], column: &ArrayRef) {
        let Some(longest) = self.longest.filter(|longest| *longest <= LONGEST) else { return };
        let length_bits = length_bits(longest);
        let append = |word: &mut W, value: &[u8]| {
            let length = value.len() as u128;
            *word = if longest < APPENDED {
                word.append(length << (longest * 8) | packed(value), longest * 8 + length_bits)
            } else {
                let (low, high) = value.split_at(value.len().min(APPENDED));
                let high = word.append(length, length_bits).append(packed(high), (longest - APPENDED) * 8);
                high.append(packed(low), APPENDED * 8)
            };
        };
        match Values::of(column) {
            // The bytes of short texts are in their views, with zeros behind them.
            Values::View(values) if longest <= MAX_INLINE_VIEW_LEN as usize && values.null_count() == 0 => {
                let bits = longest * 8 + length_bits;
                for (word, view) in words.iter_mut().zip(values.views().iter()) {
                    *word = word.append(u128::from(*view as u32) << (longest * 8) | *view >> 32, bits);
                }
            }
            values => with_values!(values, values => for (row, word) in words.iter_mut().enumerate() {
                append(word, if values.is_valid(row) { values.value(row) } else { &[] });
            }),
        }
    }

    /// The values of keys, in which they have `below` bits below them.
    pub fn unpack<W: Packed>(&self, keys: &[W], below: usize, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let longest = self.longest.unwrap_or(0);
        let length_bits = length_bits(longest);
        let mut column = Builder::new(&self.data_type, keys.len());
        for (number, key) in keys.iter().enumerate() {
            let is_valid = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(number));
            let mut bytes = [0; 2 * APPENDED];
            let mut first = 0;
            while first < longest {
                let more = APPENDED.min(longest - first);
                let value = key.bits_at(below + first * 8, more * 8);
                bytes[first..first + APPENDED].copy_from_slice(&value.to_le_bytes());
                first += APPENDED;
            }
            let length = key.bits_at(below + longest * 8, length_bits) as usize;
            column.append(is_valid.then(|| &bytes[..length]))?;
        }
        column.finish()
    }

    /// Adds the bytes of each value in its row.
    pub fn add_lengths(column: &ArrayRef, lengths: &mut [usize]) {
        with_values!(Values::of(column), values => for (row, length) in lengths.iter_mut().enumerate() {
            *length += LENGTH + if values.is_valid(row) { values.value(row).len() } else { 0 };
        });
    }

    /// Writes values to rows from `places` on, which move behind them.
    pub fn write(column: &ArrayRef, rows: &mut RowKeys, places: &mut [usize]) {
        let bytes = rows.bytes_mut();
        let mut put = |place: &mut usize, value: &[u8]| {
            bytes[*place..*place + value.len()].copy_from_slice(value);
            *place += value.len();
        };
        with_values!(Values::of(column), values => for (row, place) in places.iter_mut().enumerate() {
            let value = if values.is_valid(row) { values.value(row) } else { &[] };
            // Arrow's own texts are shorter than 2^32 - 1 bytes.
            let length = if values.is_valid(row) { value.len() as u32 } else { NULL };
            put(place, &length.to_ne_bytes());
            put(place, value);
        });
    }

    /// Reads values of rows from `places` on, which move behind them.
    pub fn read(&self, rows: &RowKeys, places: &mut [usize]) -> Result<ArrayRef> {
        let bytes = rows.bytes();
        let mut column = Builder::new(&self.data_type, places.len());
        for place in places {
            let mut length = [0; LENGTH];
            length.copy_from_slice(&bytes[*place..*place + LENGTH]);
            *place += LENGTH;
            let length = u32::from_ne_bytes(length);
            let value = (length != NULL).then(|| &bytes[*place..*place + length as usize]);
            *place += value.map_or(0, <[u8]>::len);
            column.append(value)?;
        }
        column.finish()
    }
}

/// Bits of a length of up to `longest` bytes.
fn length_bits(longest: usize) -> usize {
    (usize::BITS - longest.leading_zeros()) as usize
}

/// Up to 16 bytes as a number, the first one lowest. Parts of it are loaded, which may overlap: a copy of unknown length takes longer.
#[inline(always)]
fn packed(value: &[u8]) -> u128 {
    let length = value.len();
    let last = |bytes: usize| (length - bytes) * 8;
    if let (Some(low), Some(high)) = (value.first_chunk(), value.last_chunk()) {
        return u128::from(u64::from_le_bytes(*low)) | u128::from(u64::from_le_bytes(*high)) << last(8);
    }
    if let (Some(low), Some(high)) = (value.first_chunk(), value.last_chunk()) {
        return u128::from(u32::from_le_bytes(*low)) | u128::from(u32::from_le_bytes(*high)) << last(4);
    }
    let byte = |number: usize| u128::from(value[number]) << (number * 8);
    if length == 0 { 0 } else { byte(0) | byte(length / 2) | byte(length - 1) }
}

/// The bytes of the longest value; `None` if all are null.
fn longest(column: &ArrayRef) -> Option<usize> {
    match Values::of(column) {
        Values::View(values) if values.null_count() == 0 => {
            values.views().iter().map(|view| *view as u32).max().map(|length| length as usize)
        }
        values => with_values!(values, values => {
            (0..values.len()).filter(|row| values.is_valid(*row)).map(|row| values.value(row).len()).max()
        }),
    }
}

/// Builds a column of texts or bytes.
pub(super) struct Builder<'a> {
    data_type: &'a DataType,
    values: Building,
    bytes: usize,
}

enum Building {
    Binary(BinaryBuilder),
    LargeBinary(LargeBinaryBuilder),
    View(BinaryViewBuilder),
}

impl<'a> Builder<'a> {
    pub fn new(data_type: &'a DataType, rows: usize) -> Self {
        let values = match data_type {
            DataType::Utf8 | DataType::Binary => Building::Binary(BinaryBuilder::with_capacity(rows, 0)),
            DataType::LargeUtf8 | DataType::LargeBinary => {
                Building::LargeBinary(LargeBinaryBuilder::with_capacity(rows, 0))
            }
            _ => Building::View(BinaryViewBuilder::with_capacity(rows)),
        };
        Self { data_type, values, bytes: 0 }
    }

    pub fn append(&mut self, value: Option<&[u8]>) -> Result<()> {
        self.bytes += value.map_or(0, <[u8]>::len);
        match &mut self.values {
            Building::Binary(_) if i32::try_from(self.bytes).is_err() => {
                return Err(JoinError::Limit(format!(
                    "The groups of an aggregate have more than 2 GiB in a column of type {0}, which it cannot count. \
                     Use arrow_cast(…, 'Large{0}') in its place.",
                    self.data_type
                )));
            }
            Building::Binary(values) => values.append_option(value),
            Building::LargeBinary(values) => values.append_option(value),
            Building::View(values) => values.append_option(value),
        }
        Ok(())
    }

    /// The column. Bytes of texts are looked at once more.
    pub fn finish(self) -> Result<ArrayRef> {
        match self.values {
            Building::Binary(mut values) => of_type(values.finish(), self.data_type),
            Building::LargeBinary(mut values) => of_type(values.finish(), self.data_type),
            Building::View(mut values) if *self.data_type == DataType::Utf8View => {
                Ok(Arc::new(values.finish().to_string_view()?))
            }
            Building::View(mut values) => Ok(Arc::new(values.finish())),
        }
    }
}

fn of_type<O: OffsetSizeTrait>(bytes: GenericBinaryArray<O>, data_type: &DataType) -> Result<ArrayRef> {
    if matches!(data_type, DataType::Binary | DataType::LargeBinary) {
        return Ok(Arc::new(bytes));
    }
    Ok(Arc::new(GenericStringArray::<O>::try_from_binary(bytes)?))
}
