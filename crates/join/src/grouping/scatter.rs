//! Moves the values of columns to the places of their rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, BooleanArray, make_array};
use arrow::buffer::{BooleanBuffer, MutableBuffer, NullBuffer};
use arrow::datatypes::DataType;

use super::split::PartitionedRows;
use super::texts::{Builder, Texts, Values};
use crate::error::Result;

impl PartitionedRows {
    /// Whether columns of this type can be ordered: numbers, dates, times, intervals, truth values, texts and bytes.
    pub fn orders(data_type: &DataType) -> bool {
        *data_type == DataType::Boolean
            || Texts::are_of(data_type)
            || matches!(data_type.primitive_width(), Some(1 | 2 | 4 | 8 | 16 | 32))
    }

    /// A column in the order of the partitions. `parts` is one array or more that follow each other, of a type that can be ordered, and
    /// together have a value for each row. They are read from start to end, once, and need not be concatenated before.
    ///
    /// `O(rows)`.
    ///
    /// # Errors
    /// If a column of texts gets too long for its type.
    ///
    /// # Panics
    /// If the parts have too few rows or too many, or another type.
    pub fn ordered(&self, parts: &[&dyn Array]) -> Result<ArrayRef> {
        let rows = self.places.len();
        assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), rows, "a column has a value for each row");
        let data_type = parts[0].data_type();
        if Texts::are_of(data_type) {
            return self.texts(parts);
        }
        let nulls = parts.iter().any(|part| part.null_count() > 0).then(|| {
            let valid = |part: &&dyn Array| match part.nulls() {
                Some(nulls) => nulls.inner().clone(),
                None => BooleanBuffer::new_set(part.len()),
            };
            NullBuffer::new(self.bits(parts.iter().map(valid)))
        });
        let values = match data_type.primitive_width() {
            None => {
                let values = self.bits(parts.iter().map(|part| part.as_boolean().values().clone()));
                return Ok(Arc::new(BooleanArray::new(values, nulls)));
            }
            Some(1) => self.values::<1>(parts),
            Some(2) => self.values::<2>(parts),
            Some(4) => self.values::<4>(parts),
            Some(8) => self.values::<8>(parts),
            Some(16) => self.values::<16>(parts),
            Some(_) => self.values::<32>(parts),
        };
        let data = ArrayData::builder(data_type.clone()).len(rows).add_buffer(values.into()).nulls(nulls);
        Ok(make_array(data.build()?))
    }

    /// Texts, in buffers of their own: those of a view may have many more.
    fn texts(&self, parts: &[&dyn Array]) -> Result<ArrayRef> {
        let values: Vec<Values> = parts.iter().map(|part| Values::of(*part)).collect();
        let rows = values.iter().zip(parts).flat_map(|(values, part)| (0..part.len()).map(|row| values.get(row)));
        let mut ordered = vec![None; self.places.len()];
        for (value, place) in rows.zip(&self.places) {
            ordered[*place as usize] = value;
        }
        let mut column = Builder::new(parts[0].data_type(), ordered.len());
        for value in ordered {
            column.append(value)?;
        }
        column.finish()
    }

    /// Values of `BYTES` bytes.
    fn values<const BYTES: usize>(&self, parts: &[&dyn Array]) -> MutableBuffer {
        let mut ordered = MutableBuffer::from_len_zeroed(self.places.len() * BYTES);
        let (ordered_values, _) = ordered.as_slice_mut().as_chunks_mut::<BYTES>();
        let mut places = self.places.as_slice();
        for part in parts {
            let data = part.to_data();
            for (value, place) in
                values_of::<BYTES>(&data).iter().zip(places.split_off(..part.len()).unwrap_or_default())
            {
                ordered_values[*place as usize] = *value;
            }
        }
        ordered
    }

    fn bits(&self, parts: impl Iterator<Item = BooleanBuffer>) -> BooleanBuffer {
        let mut ordered = vec![false; self.places.len()];
        let mut places = self.places.as_slice();
        for part in parts {
            for (bit, place) in part.iter().zip(places.split_off(..part.len()).unwrap_or_default()) {
                ordered[*place as usize] = bit;
            }
        }
        ordered.into()
    }
}

/// The values of a column, each of `BYTES` bytes. There may be more than the column has.
pub(super) fn values_of<const BYTES: usize>(data: &ArrayData) -> &[[u8; BYTES]] {
    let (values, _) = data.buffers()[0].as_slice()[data.offset() * BYTES..].as_chunks::<BYTES>();
    values
}
