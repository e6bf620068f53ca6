//! Keys of any length as bytes.

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, LargeBinaryArray};
use arrow::datatypes::DataType;
use arrow::row::Rows;
use foldhash::quality::FixedState;
use overspill_machine::memory::PageVec;
use std::hash::BuildHasher;

use crate::error::Result;
use crate::memory::HeldMemory;
use crate::parallel::in_parallel;

/// The seed of the hash of keys in bytes.
const SEED: u64 = 0x6A09_E667_F3BC_C908;

/// The keys of rows as bytes. Two keys are equal if and only if their bytes are equal.
#[derive(Debug)]
pub struct KeyBytes(Place);

#[derive(Debug)]
enum Place {
    /// In Arrow's row format.
    Rows(Rows),
    /// The same for several batches: the bytes of all keys, and the end of each key.
    Concatenated {
        bytes: PageVec<u8>,
        ends: PageVec<u64>,
    },
    /// The values of the only key column, where they are.
    Binary(BinaryArray),
    LargeBinary(LargeBinaryArray),
    View(BinaryViewArray),
}

impl From<Rows> for KeyBytes {
    fn from(rows: Rows) -> Self {
        Self(Place::Rows(rows))
    }
}

impl KeyBytes {
    /// Whether the values of a column of this type are bytes that can be used without a copy.
    pub(super) fn are_values_of(data_type: &DataType) -> bool {
        use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
        matches!(data_type, Binary | BinaryView | LargeBinary | LargeUtf8 | Utf8 | Utf8View)
    }

    /// The values of a column, without a copy.
    pub(super) fn values_of(column: &ArrayRef) -> Self {
        Self(match column.data_type() {
            DataType::Utf8 => Place::Binary(column.as_string::<i32>().clone().into()),
            DataType::LargeUtf8 => Place::LargeBinary(column.as_string::<i64>().clone().into()),
            DataType::Utf8View => Place::View(column.as_string_view().clone().to_binary_view()),
            DataType::Binary => Place::Binary(column.as_binary::<i32>().clone()),
            DataType::LargeBinary => Place::LargeBinary(column.as_binary::<i64>().clone()),
            DataType::BinaryView => Place::View(column.as_binary_view().clone()),
            other => unreachable!("values of type {other} are not bytes"),
        })
    }

    /// Concatenates keys in row format on `threads` threads. Frees each part once it has been copied.
    ///
    /// # Errors
    /// Fails if the system does not provide the memory.
    pub(crate) fn concat(parts: Vec<Rows>, threads: usize) -> Result<Self> {
        let length = |rows: &Rows| rows.iter().map(|row| row.data().len()).sum::<usize>();
        let lengths = in_parallel(threads, parts.iter().collect(), length);
        let mut bytes = PageVec::<u8>::zeroed(lengths.iter().sum())?;
        let mut ends = PageVec::<u64>::zeroed(parts.iter().map(Rows::num_rows).sum())?;
        let (mut rest, mut end) = ((&mut bytes[..], &mut ends[..]), 0);
        let mut copies = Vec::with_capacity(parts.len());
        for (rows, length) in parts.into_iter().zip(lengths) {
            let (bytes, bytes_after) = rest.0.split_at_mut(length);
            let (ends, ends_after) = rest.1.split_at_mut(rows.num_rows());
            copies.push((rows, end, bytes, ends));
            rest = (bytes_after, ends_after);
            end += length;
        }
        in_parallel(threads, copies, |(rows, begin, bytes, ends): (Rows, usize, &mut [u8], &mut [u64])| {
            let mut end = 0;
            for (row, place) in rows.iter().zip(ends) {
                let start = end;
                end += row.data().len();
                bytes[start..end].copy_from_slice(row.data());
                *place = (begin + end) as u64;
            }
        });
        Ok(Self(Place::Concatenated { bytes, ends }))
    }

    /// Number of keys.
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Place::Rows(rows) => rows.num_rows(),
            Place::Concatenated { ends, .. } => ends.len(),
            Place::Binary(array) => array.len(),
            Place::LargeBinary(array) => array.len(),
            Place::View(array) => array.len(),
        }
    }

    /// The bytes of a key; any bytes for a null.
    #[inline(always)]
    pub fn get(&self, row: usize) -> &[u8] {
        match &self.0 {
            Place::Rows(rows) => rows.row(row).data(),
            Place::Concatenated { bytes, ends } => {
                let begin = row.checked_sub(1).map_or(0, |before| ends[before]);
                &bytes[begin as usize..ends[row] as usize]
            }
            Place::Binary(array) => array.value(row),
            Place::LargeBinary(array) => array.value(row),
            Place::View(array) => array.value(row),
        }
    }

    /// The hash of a key.
    #[inline(always)]
    pub(crate) fn hash(&self, row: usize) -> u64 {
        FixedState::with_seed(SEED).hash_one(self.get(row))
    }

    /// The hash of each key.
    pub(crate) fn hashes(&self) -> Vec<u64> {
        (0..self.len()).map(|row| self.hash(row)).collect()
    }

    /// Bytes of the keys besides those of the column that they are the values of.
    pub(crate) fn bytes(&self) -> usize {
        match &self.0 {
            Place::Rows(rows) => rows.size(),
            Place::Concatenated { bytes, ends } => bytes.bytes() + ends.bytes(),
            Place::Binary(_) | Place::LargeBinary(_) | Place::View(_) => 0,
        }
    }

    /// Adds the column that the keys are the values of to the memory that is held. Returns the bytes by which it grows.
    pub(crate) fn hold(&self, held: &mut HeldMemory) -> usize {
        match &self.0 {
            Place::Rows(_) | Place::Concatenated { .. } => 0,
            Place::Binary(array) => held.add_column(array),
            Place::LargeBinary(array) => held.add_column(array),
            Place::View(array) => held.add_column(array),
        }
    }
}
