//! Early materialization: the needed columns of a side, packed into one word per row.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, RecordBatch, make_array};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, SchemaRef};

use super::keyed_batch::KeyedBatch;
use crate::error::Result;
use crate::hash_table::{ChunkKeys, PayloadRows};
use crate::keys::bits_of;
use crate::spec::{JoinSpec, PairForm, Side};

/// Columns that together fit one 64-bit word, stored next to the key. A lookup in a hash table of packed rows costs one cache
/// miss. A hash table of row numbers costs another miss for each column.
#[derive(Debug)]
pub struct PackedPayload {
    columns: Vec<PackedColumn>,
    schema: SchemaRef,
}

/// The position of a column in the word.
#[derive(Debug)]
struct PackedColumn {
    index: usize,
    width: usize,
    shift: u32,
}

impl PackedPayload {
    /// The columns of one side that the join emits or filters by. Returns `None` if pairs must have the numbers of the rows, if
    /// a column is not of fixed width, or if they do not fit.
    pub fn of(spec: &JoinSpec, side: Side) -> Option<Self> {
        match (spec.pair_form(), side) {
            (PairForm::Columns, _) | (PairForm::ProbeNumbers, Side::Build) => {}
            (PairForm::ProbeNumbers, Side::Probe) | (PairForm::Numbers, _) => return None,
        }
        let schema = spec.schema(side);
        let mut columns: Vec<PackedColumn> = Vec::new();
        let mut bytes = 0;
        for index in spec.copied_columns(side) {
            if columns.iter().any(|column| column.index == index) {
                continue;
            }
            let width = schema.field(index).data_type().primitive_width()?;
            columns.push(PackedColumn { index, width, shift: 8 * bytes as u32 });
            bytes += width;
            if bytes > size_of::<u64>() {
                return None;
            }
        }
        Some(Self { columns, schema: Arc::clone(schema) })
    }

    /// The position of a column in the word: its lowest bit and its number of bits.
    pub fn place(&self, index: usize) -> Option<(u32, u32)> {
        let column = self.columns.iter().find(|column| column.index == index)?;
        Some((column.shift, 8 * column.width as u32))
    }

    /// Whether no column is needed.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Whether these rows can be packed: none of the packed columns has a null.
    pub fn takes(&self, batch: &RecordBatch) -> bool {
        self.columns.iter().all(|column| batch.column(column.index).null_count() == 0)
    }

    /// Whether the packed columns take at most 32 bits.
    pub(super) fn is_narrow(&self) -> bool {
        self.columns.iter().map(|column| column.width).sum::<usize>() <= size_of::<u32>()
    }

    /// Packs each row into a word.
    pub fn pack(&self, batch: &RecordBatch) -> ScalarBuffer<u64> {
        if let [column @ PackedColumn { width: 8, .. }] = &self.columns[..] {
            return bits_of(batch.column(column.index));
        }
        let mut words = Vec::new();
        for column in &self.columns {
            let (array, shift) = (batch.column(column.index), column.shift);
            match column.width {
                1 => add::<u8>(&mut words, array, shift),
                2 => add::<u16>(&mut words, array, shift),
                4 => add::<u32>(&mut words, array, shift),
                _ => add::<u64>(&mut words, array, shift),
            }
        }
        words.into()
    }

    /// Unpacks the column at `index` from the words of rows.
    pub(super) fn unpack(&self, index: usize, words: &ScalarBuffer<u64>) -> Result<ArrayRef> {
        let Some(column) = self.columns.iter().find(|column| column.index == index) else {
            unreachable!("all columns that are needed are packed")
        };
        let shifted = words.iter().map(|word| word >> column.shift);
        let values: Buffer = match column.width {
            1 => shifted.map(|word| word as u8).collect::<Vec<_>>().into(),
            2 => shifted.map(|word| word as u16).collect::<Vec<_>>().into(),
            4 => shifted.map(|word| word as u32).collect::<Vec<_>>().into(),
            _ => words.inner().clone(),
        };
        let data_type: &DataType = self.schema.field(index).data_type();
        Ok(make_array(ArrayData::builder(data_type.clone()).len(words.len()).add_buffer(values).build()?))
    }

    /// An empty batch, for use when the table stores the columns.
    pub(super) fn empty_batch(&self) -> RecordBatch {
        RecordBatch::new_empty(Arc::clone(&self.schema))
    }
}

/// Build rows with their keys and packed columns.
pub(super) struct PackedBuild<'a> {
    pub(super) spec: &'a JoinSpec,
    pub(super) batches: &'a [KeyedBatch],
    pub(super) payload: &'a PackedPayload,
}

impl PayloadRows for PackedBuild<'_> {
    fn chunks(&self) -> usize {
        self.batches.len()
    }

    fn rows(&self, number: usize) -> usize {
        self.batches[number].batch.num_rows()
    }

    fn keys(&self, number: usize) -> ChunkKeys {
        self.batches[number].words(self.spec)
    }

    fn payloads(&self, number: usize) -> ScalarBuffer<u64> {
        self.payload.pack(&self.batches[number].batch)
    }

    fn is_narrow(&self) -> bool {
        self.payload.is_narrow()
    }
}

/// Adds the values of a column to the words of the rows. `words` is empty before the first column.
fn add<T: ArrowNativeType + Into<u64>>(words: &mut Vec<u64>, array: &ArrayRef, shift: u32) {
    let values = bits_of::<T>(array);
    let shifted = values.iter().map(|value| (*value).into() << shift);
    if words.is_empty() {
        words.extend(shifted);
    } else {
        words.iter_mut().zip(shifted).for_each(|(word, value)| *word |= value);
    }
}
