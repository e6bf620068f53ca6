//! Packs key columns into words or rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::*;
use arrow::row::{RowConverter, Rows, SortField};

use super::bytes::KeyBytes;
use super::word::Word;
use crate::error::Result;
use crate::memory::HeldMemory;
use crate::parallel::in_parallel;

/// Rows that a thread packs at once.
const PACKED_TOGETHER: usize = 64 << 10;

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
    /// The values of the only key column, which are bytes.
    Values,
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
    /// All other keys. The values of a single key column of text or binary are used without a copy.
    Rows(KeyBytes),
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
            _ if !null_equal && matches!(types, [data_type] if KeyBytes::are_values_of(data_type)) => Layout::Values,
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
        self.encode_in_parallel(columns, 1)
    }

    /// Like [`KeyCodec::encode`], on `threads` threads if the keys fit 128 bits.
    pub(crate) fn encode_in_parallel(&self, columns: &[ArrayRef], threads: usize) -> Result<Keys> {
        let data = match &self.layout {
            Layout::Word64 => KeyData::Word64(self.words(columns, threads)),
            Layout::Word128 => KeyData::Word128(self.pack(columns, threads)),
            Layout::Values => KeyData::Rows(KeyBytes::values_of(&columns[0])),
            Layout::Rows(converter) => KeyData::Rows(row_format(converter, columns)?.into()),
        };
        Ok(Keys { data, matchable: self.matchable(columns) })
    }

    /// The rows whose keys can match; `None` if all can.
    pub(crate) fn matchable(&self, columns: &[ArrayRef]) -> Option<NullBuffer> {
        if self.null_equal {
            return None;
        }
        columns.iter().fold(None, |nulls, column| {
            let own = column.logical_nulls().filter(|nulls| nulls.null_count() > 0);
            NullBuffer::union(nulls.as_ref(), own.as_ref())
        })
    }

    /// The packed keys; only for a codec of words.
    pub(crate) fn words(&self, columns: &[ArrayRef], threads: usize) -> ScalarBuffer<u64> {
        match columns {
            [column] if self.is_column => bits_of(column),
            [column] if threads == 1 && !self.null_equal && is_half_word(column.data_type()) => {
                bits_of::<u32>(column).iter().map(|value| u64::from(*value)).collect()
            }
            _ => self.pack::<u64>(columns, threads).into(),
        }
    }

    /// The keys in row format; `None` if the codec has another.
    pub(crate) fn rows(&self, columns: &[ArrayRef]) -> Result<Option<Rows>> {
        match &self.layout {
            Layout::Rows(converter) => row_format(converter, columns).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether packed keys have at most 64 bits.
    pub fn is_word(&self) -> bool {
        matches!(self.layout, Layout::Word64)
    }

    /// Bytes of a packed key; `None` for keys in bytes, which vary in size.
    pub(crate) fn word_bytes(&self) -> Option<usize> {
        match self.layout {
            Layout::Word64 => Some(size_of::<u64>()),
            Layout::Word128 => Some(size_of::<[u64; 2]>()),
            Layout::Values | Layout::Rows(_) => None,
        }
    }

    /// Bytes of a packed key, 0 if the column's values are used without a copy; `None` for keys in bytes.
    pub fn packed_bytes(&self) -> Option<usize> {
        if self.is_column { Some(0) } else { self.word_bytes() }
    }

    fn pack<W: Packed>(&self, columns: &[ArrayRef], threads: usize) -> Vec<W> {
        let rows = columns.first().map_or(0, |column| column.len());
        let mut words = vec![W::default(); rows];
        in_parallel(threads, words.chunks_mut(PACKED_TOGETHER).enumerate().collect(), |(number, words)| {
            for column in columns {
                let column = column.slice(number * PACKED_TOGETHER, words.len());
                append_column(words, &column);
                if self.null_equal {
                    let nulls = column.logical_nulls();
                    for (row, word) in words.iter_mut().enumerate() {
                        let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                        *word = word.append(u128::from(is_null), 1);
                    }
                }
            }
        });
        words
    }
}

impl Keys {
    /// The number of rows.
    pub fn len(&self) -> usize {
        match &self.data {
            KeyData::Word64(words) => words.len(),
            KeyData::Word128(words) => words.len(),
            KeyData::Rows(keys) => keys.len(),
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

    /// Keys of a codec of words of 64 bits.
    pub(crate) fn words(&self) -> &[u64] {
        let KeyData::Word64(words) = &self.data else { unreachable!("both sides of a join share one key codec") };
        words
    }

    /// Keys of a codec of words of 128 bits.
    pub(crate) fn wide_words(&self) -> &[[u64; 2]] {
        let KeyData::Word128(words) = &self.data else { unreachable!("both sides of a join share one key codec") };
        words
    }

    /// Keys of a codec of bytes.
    pub(crate) fn bytes_of_rows(&self) -> &KeyBytes {
        let KeyData::Rows(keys) = &self.data else { unreachable!("both sides of a join share one key codec") };
        keys
    }

    /// Whether keys are in bytes.
    pub(crate) fn are_bytes(&self) -> bool {
        matches!(self.data, KeyData::Rows(_))
    }

    /// Bytes that the key of a row takes in a hash table besides its entry.
    pub fn row_bytes(&self, row: usize) -> usize {
        match &self.data {
            KeyData::Word64(_) | KeyData::Word128(_) => 0,
            KeyData::Rows(keys) => keys.get(row).len() + size_of::<usize>(),
        }
    }

    /// Bytes that the keys of all rows take in a hash table besides their entries.
    pub fn bytes(&self) -> usize {
        match &self.data {
            KeyData::Word64(_) | KeyData::Word128(_) => 0,
            KeyData::Rows(keys) => keys.bytes(),
        }
    }

    /// Adds the keys to the memory that is held, besides the columns that are held already. Returns the bytes by which it
    /// grows.
    pub fn hold(&self, held: &mut HeldMemory) -> usize {
        match &self.data {
            KeyData::Word64(_) | KeyData::Word128(_) => 0,
            KeyData::Rows(keys) => keys.bytes() + keys.hold(held),
        }
    }

    /// Whether a key equals one of the other side, which must come from the same codec.
    pub fn are_equal(&self, row: usize, other: &Self, other_row: usize) -> bool {
        match (&self.data, &other.data) {
            (KeyData::Word64(words), KeyData::Word64(others)) => words[row] == others[other_row],
            (KeyData::Word128(words), KeyData::Word128(others)) => words[row] == others[other_row],
            (KeyData::Rows(keys), KeyData::Rows(others)) => keys.get(row) == others.get(other_row),
            _ => unreachable!("both sides of a join share one key codec"),
        }
    }

    /// The hash of each key; those of rows that cannot match are arbitrary.
    pub fn hashes(&self) -> Vec<u64> {
        match &self.data {
            KeyData::Word64(words) => words.iter().map(|word| word.hash()).collect(),
            KeyData::Word128(words) => words.iter().map(|word| word.hash()).collect(),
            KeyData::Rows(keys) => keys.hashes(),
        }
    }
}

fn row_format(converter: &RowConverter, columns: &[ArrayRef]) -> Result<Rows> {
    let columns: Vec<_> = columns.iter().map(normalize_zero).collect();
    Ok(converter.convert_columns(&columns)?)
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

/// The bits of the values of a column, without a copy where their alignment allows it. `T` has the width of the values, but
/// may need another alignment: intervals consist of narrower numbers.
pub(crate) fn bits_of<T: ArrowNativeType>(column: &ArrayRef) -> ScalarBuffer<T> {
    let data = column.to_data();
    let buffer = &data.buffers()[0];
    let buffer = match buffer.as_ptr().align_offset(align_of::<T>()) {
        0 => buffer.clone(),
        _ => Buffer::from_slice_ref(buffer.as_slice()),
    };
    ScalarBuffer::new(buffer, data.offset(), data.len())
}

/// A word that key columns are packed into.
pub(crate) trait Packed: Copy + Default + Send {
    /// Appends a value of this many bits.
    fn append(self, value: u128, bits: usize) -> Self;

    /// The value of this many bits that has `below` bits below it. Those may be all bits, if the value has none.
    fn bits_at(self, below: usize, bits: usize) -> u128;
}

/// The lowest bits of a value.
#[inline(always)]
fn lowest(value: u128, bits: usize) -> u128 {
    value & u128::MAX.checked_shr(u128::BITS - bits as u32).unwrap_or(0)
}

impl Packed for u64 {
    #[inline(always)]
    fn append(self, value: u128, bits: usize) -> Self {
        self.checked_shl(bits as u32).unwrap_or(0) | value as Self
    }

    #[inline(always)]
    fn bits_at(self, below: usize, bits: usize) -> u128 {
        lowest(u128::from(self.checked_shr(below as u32).unwrap_or(0)), bits)
    }
}

/// The lower half comes first.
impl Packed for [u64; 2] {
    #[inline(always)]
    fn append(self, value: u128, bits: usize) -> Self {
        let word = u128::from(self[1]) << 64 | u128::from(self[0]);
        let word = word.checked_shl(bits as u32).unwrap_or(0) | value;
        [word as u64, (word >> 64) as u64]
    }

    #[inline(always)]
    fn bits_at(self, below: usize, bits: usize) -> u128 {
        let word = u128::from(self[1]) << 64 | u128::from(self[0]);
        lowest(word.checked_shr(below as u32).unwrap_or(0), bits)
    }
}

/// The lower words come first.
impl Packed for [u64; 3] {
    #[inline(always)]
    fn append(self, value: u128, bits: usize) -> Self {
        let low = u128::from(self[1]) << 64 | u128::from(self[0]);
        // The upper word gets the bits that leave the lower two.
        let high = match bits {
            0 => self[2],
            64.. => (low >> (u128::BITS - bits as u32)) as u64,
            _ => self[2] << bits | (low >> (u128::BITS - bits as u32)) as u64,
        };
        let low = low.checked_shl(bits as u32).unwrap_or(0) | value;
        [low as u64, (low >> 64) as u64, high]
    }

    #[inline(always)]
    fn bits_at(self, below: usize, bits: usize) -> u128 {
        let (skipped, below) = (below / 64, below % 64);
        let word = |number: usize| u128::from(self.get(skipped + number).copied().unwrap_or(0));
        let low = word(1) << 64 | word(0);
        let high = word(2).checked_shl(u128::BITS - below as u32).unwrap_or(0);
        lowest(low >> below | high, bits)
    }
}

/// Appends the bits of a column to each word. Nulls append zeros, so that two nulls are equal words.
pub(crate) fn append_column<W: Packed>(words: &mut [W], column: &ArrayRef) {
    let data_type = column.data_type();
    match (data_type.is_floating(), data_type.primitive_width()) {
        // SQL treats -0.0 and 0.0 as equal; a value is one of the two if all its bits except the sign are zero.
        (true, Some(2)) => append_bits(words, column, 16, |bits: u16| if bits << 1 == 0 { 0 } else { bits.into() }),
        (true, Some(4)) => append_bits(words, column, 32, |bits: u32| if bits << 1 == 0 { 0 } else { bits.into() }),
        (true, Some(8)) => append_bits(words, column, 64, |bits: u64| if bits << 1 == 0 { 0 } else { bits.into() }),
        (_, Some(1)) => append_bits::<u8, _>(words, column, 8, u128::from),
        (_, Some(2)) => append_bits::<u16, _>(words, column, 16, u128::from),
        (_, Some(4)) => append_bits::<u32, _>(words, column, 32, u128::from),
        (_, Some(8)) => append_bits::<u64, _>(words, column, 64, u128::from),
        (_, Some(16)) => append_bits(words, column, 128, |bits: i128| bits as u128),
        _ => {
            // Only truth values have another width and no row format.
            let values = column.as_boolean();
            for (row, word) in words.iter_mut().enumerate() {
                *word = word.append(u128::from(values.is_valid(row) && values.value(row)), 1);
            }
        }
    }
}

/// Appends `width` bits of each value to its word, or zeros for a null. `bits` gives no higher ones.
pub(crate) fn append_bits<T: ArrowNativeType, W: Packed>(
    words: &mut [W],
    column: &ArrayRef,
    width: usize,
    bits: impl Fn(T) -> u128,
) {
    let values = bits_of::<T>(column);
    match column.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => {
            for (word, value) in words.iter_mut().zip(&*values) {
                *word = word.append(bits(*value), width);
            }
        }
        Some(nulls) => {
            for (row, (word, value)) in words.iter_mut().zip(&*values).enumerate() {
                let value = if nulls.is_valid(row) { bits(*value) } else { 0 };
                *word = word.append(value, width);
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
