//! Packs the key columns of groups into words, and unpacks them.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, BooleanArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};

use crate::error::Result;
use crate::keys::{Packed, append_column, bits_of};

/// How key columns lie in a word: the first in its highest bits. A column that may have nulls is followed by a bit, which is set for a null. A key of
/// one column has no such bit: [`GroupCodec::nulls`] gives its nulls.
#[derive(Debug)]
pub(super) struct GroupCodec {
    columns: Vec<Column>,
}

#[derive(Debug)]
struct Column {
    data_type: DataType,
    bits: usize,
    has_null_bit: bool,
    /// The number of lower bits in the word, which are those of its null bit and of later columns.
    below: usize,
}

/// Bits of a value of this type; `None` if it cannot be packed. Floats are left out, because two of equal value may differ, and intervals, because
/// equal ones may.
fn value_bits(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        DataType::Interval(_) | DataType::Decimal256(..) => None,
        other if other.is_floating() => None,
        other => other.primitive_width().map(|bytes| bytes * 8),
    }
}

impl GroupCodec {
    pub fn try_new(columns: &[(DataType, bool)]) -> Option<Self> {
        let is_only = columns.len() == 1;
        let mut below = 0;
        let mut packed = vec![];
        for (data_type, may_be_null) in columns.iter().rev() {
            let (bits, has_null_bit) = (value_bits(data_type)?, *may_be_null && !is_only);
            below += usize::from(has_null_bit);
            packed.push(Column { data_type: data_type.clone(), bits, has_null_bit, below });
            below += bits;
        }
        packed.reverse();
        (!packed.is_empty()).then_some(Self { columns: packed })
    }

    /// Bits of a key.
    pub fn bits(&self) -> usize {
        self.columns[0].below + self.columns[0].bits
    }

    /// The rows that are no key: those of an only column that are null.
    pub fn nulls(&self, columns: &[ArrayRef]) -> Option<NullBuffer> {
        let [column] = columns else { return None };
        column.nulls().filter(|nulls| nulls.null_count() > 0).cloned()
    }

    /// The keys of each row, of at most 64 bits. The values of an only column of 64 bits are not copied.
    pub fn words(&self, columns: &[ArrayRef]) -> ScalarBuffer<u64> {
        match columns {
            [column] if self.bits() == 64 => bits_of(column),
            _ => self.pack::<u64>(columns).into(),
        }
    }

    /// The keys of each row.
    pub fn pack<W: Packed>(&self, columns: &[ArrayRef]) -> Vec<W> {
        let mut words = vec![W::default(); columns.first().map_or(0, |column| column.len())];
        for (column, values) in self.columns.iter().zip(columns) {
            append_column(&mut words, values);
            if !column.has_null_bit {
                continue;
            }
            match values.nulls().filter(|nulls| nulls.null_count() > 0) {
                None => words.iter_mut().for_each(|word| *word = word.append(0, 1)),
                Some(nulls) => {
                    for (word, is_valid) in words.iter_mut().zip(nulls) {
                        *word = word.append(u128::from(!is_valid), 1);
                    }
                }
            }
        }
        words
    }

    /// The columns of `keys`. The key with the number `null` stands for the rows whose only column is null.
    pub fn unpack<W: Packed>(&self, keys: &[W], null: Option<usize>) -> Result<Vec<ArrayRef>> {
        self.columns.iter().map(|column| column.unpack(keys, null)).collect()
    }
}

impl Column {
    fn unpack<W: Packed>(&self, keys: &[W], null: Option<usize>) -> Result<ArrayRef> {
        let value = |key: &W| key.bits_at(self.below, self.bits);
        let is_null = |(number, key): (usize, &W)| {
            null == Some(number) || (self.has_null_bit && key.bits_at(self.below - 1, 1) == 1)
        };
        let nulls = if self.has_null_bit || null.is_some() {
            let valid: BooleanBuffer = keys.iter().enumerate().map(|key| !is_null(key)).collect();
            Some(NullBuffer::new(valid)).filter(|nulls| nulls.null_count() > 0)
        } else {
            None
        };
        let values = match self.bits {
            1 => return Ok(Arc::new(BooleanArray::new(keys.iter().map(|key| value(key) == 1).collect(), nulls))),
            8 => buffer(keys, |key| value(key) as u8),
            16 => buffer(keys, |key| value(key) as u16),
            32 => buffer(keys, |key| value(key) as u32),
            64 => buffer(keys, |key| value(key) as u64),
            _ => buffer(keys, |key| value(key) as i128),
        };
        let data = ArrayData::builder(self.data_type.clone()).len(keys.len()).add_buffer(values).nulls(nulls);
        Ok(make_array(data.build()?))
    }
}

fn buffer<W, T: ArrowNativeType>(keys: &[W], value: impl Fn(&W) -> T) -> Buffer {
    Buffer::from_vec(keys.iter().map(value).collect::<Vec<T>>())
}
