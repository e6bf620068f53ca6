//! Build rows that have been collected, with their keys.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::buffer::NullBuffer;
use arrow::compute::{filter, filter_record_batch};
use arrow::row::Rows;

use crate::error::{JoinError, Result};
use crate::hash_table::{ChunkKeys, IndexCost};
use crate::keys::{KeyBytes, KeyData, Keys};
use crate::memory::{HeldMemory, compact, compact_column};
use crate::rows::{concat_arrays, concat_batches};
use crate::spec::{JoinSpec, Side};

/// Build rows with their keys. Key expressions are evaluated once, and keys in row format are encoded once. Keys in words are
/// packed when a table is built, by all of its threads.
#[derive(Debug)]
pub(super) struct KeyedBatch {
    pub(super) batch: RecordBatch,
    keys: Vec<KeyColumn>,
    /// The keys in row format, if they have been encoded.
    rows: Option<Rows>,
}

#[derive(Debug)]
enum KeyColumn {
    /// The column of the batch with this index.
    Of(usize),
    /// The value of another expression.
    Evaluated(ArrayRef),
}

impl KeyColumn {
    fn array<'a>(&'a self, batch: &'a RecordBatch) -> &'a ArrayRef {
        match self {
            Self::Of(index) => batch.column(*index),
            Self::Evaluated(array) => array,
        }
    }

    /// Maps an evaluated column.
    fn map<E: Into<JoinError>>(self, map: impl Fn(&ArrayRef) -> Result<ArrayRef, E>) -> Result<Self> {
        match self {
            Self::Of(_) => Ok(self),
            Self::Evaluated(array) => Ok(Self::Evaluated(map(&array).map_err(Into::into)?)),
        }
    }
}

impl KeyedBatch {
    /// Evaluates the key expressions of a batch.
    pub(super) fn new(spec: &JoinSpec, batch: RecordBatch) -> Result<Self> {
        let key = |array: ArrayRef| match batch.columns().iter().position(|column| Arc::ptr_eq(column, &array)) {
            Some(index) => KeyColumn::Of(index),
            None => KeyColumn::Evaluated(array),
        };
        let keys = spec.build_keys.evaluate(&batch)?.into_iter().map(key).collect();
        Ok(Self { batch, keys, rows: None })
    }

    /// The key columns.
    fn columns(&self) -> Vec<ArrayRef> {
        self.keys.iter().map(|key| Arc::clone(key.array(&self.batch))).collect()
    }

    /// The columns of the batch, and then its key columns.
    pub(super) fn arrays(&self) -> Vec<ArrayRef> {
        self.batch.columns().iter().cloned().chain(self.columns()).collect()
    }

    /// The rows that can match; `None` if all can.
    pub(super) fn matchable(&self, spec: &JoinSpec) -> Option<NullBuffer> {
        spec.codec.matchable(&self.columns())
    }

    /// The keys, packed into words; only for a codec of words of 64 bits.
    pub(super) fn words(&self, spec: &JoinSpec) -> ChunkKeys {
        let columns = self.columns();
        ChunkKeys { keys: spec.codec.words(&columns, 1), matchable: spec.codec.matchable(&columns) }
    }

    /// The batch, and its packed keys.
    pub(super) fn into_parts(self, spec: &JoinSpec) -> Result<(RecordBatch, Keys)> {
        let columns = self.columns();
        let keys = match self.rows {
            Some(rows) => Keys { data: KeyData::Rows(rows.into()), matchable: spec.codec.matchable(&columns) },
            None => spec.codec.encode(&columns)?,
        };
        Ok((self.batch, keys))
    }

    /// Only the rows that are valid in `wanted`.
    pub(super) fn filter(self, wanted: &NullBuffer) -> Result<Self> {
        let wanted = BooleanArray::new(wanted.inner().clone(), None);
        let keys = self.keys.into_iter().map(|key| key.map(|array| filter(array, &wanted))).collect::<Result<_>>()?;
        Ok(Self { batch: filter_record_batch(&self.batch, &wanted)?, keys, rows: None })
    }

    /// Copies the columns that keep much more memory alive than their rows need.
    pub(super) fn compact(self) -> Result<Self> {
        let keys = self.keys.into_iter().map(|key| key.map(compact_column)).collect::<Result<_>>()?;
        Ok(Self { batch: compact(self.batch)?, keys, rows: self.rows })
    }

    /// Adds the rows to the memory that is held, and encodes keys in row format. Returns the bytes that the rows, their keys
    /// and, at the cost of `index`, their index take.
    pub(super) fn hold(&mut self, spec: &JoinSpec, held: &mut HeldMemory, index: IndexCost) -> Result<usize> {
        let batch_bytes = held.add(&self.batch);
        self.rows = spec.codec.rows(&self.columns())?;
        let mut key_bytes = self.rows.as_ref().map_or(0, Rows::size);
        for key in &self.keys {
            if let KeyColumn::Evaluated(array) = key {
                key_bytes += held.add_column(array);
            }
        }
        Ok(batch_bytes + index.of(self.batch.num_rows(), &self.arrays(), key_bytes))
    }

    /// Concatenates the rows of all batches, and packs those of their keys that are not encoded yet.
    pub(super) fn concat(spec: &JoinSpec, batches: Vec<Self>, threads: usize) -> Result<(RecordBatch, Keys)> {
        let batches = match batches.is_empty() {
            true => vec![Self::new(spec, RecordBatch::new_empty(Arc::clone(spec.schema(Side::Build))))?],
            false => batches,
        };
        let mut keys = vec![Vec::with_capacity(batches.len()); batches[0].keys.len()];
        for batch in &batches {
            keys.iter_mut().zip(batch.columns()).for_each(|(arrays, array)| arrays.push(array));
        }
        // The column that is the key in every batch is the key of all rows.
        let indices: Vec<_> = (0..keys.len()).map(|key| common_index(&batches, key)).collect();
        for (arrays, _) in keys.iter_mut().zip(&indices).filter(|(_, index)| index.is_some()) {
            arrays.clear();
        }
        let (batches, rows): (Vec<_>, Vec<_>) = batches.into_iter().map(|batch| (batch.batch, batch.rows)).unzip();
        let batch = concat_batches(spec.schema(Side::Build), batches, threads)?;
        let column = |(arrays, index): (Vec<ArrayRef>, Option<usize>)| match index {
            Some(index) => Ok(Arc::clone(batch.column(index))),
            None => concat_arrays(&arrays, threads),
        };
        let columns = keys.into_iter().zip(indices).map(column).collect::<Result<Vec<_>>>()?;
        let keys = match rows.into_iter().collect::<Option<Vec<_>>>() {
            Some(rows) => {
                let data = KeyData::Rows(KeyBytes::concat(rows, threads)?);
                Keys { data, matchable: spec.codec.matchable(&columns) }
            }
            None => spec.codec.encode_in_parallel(&columns, threads)?,
        };
        Ok((batch, keys))
    }
}

/// The index of the column that is the key with number `key` in every batch.
fn common_index(batches: &[KeyedBatch], key: usize) -> Option<usize> {
    let index = |batch: &KeyedBatch| match &batch.keys[key] {
        KeyColumn::Of(index) => Some(*index),
        KeyColumn::Evaluated(_) => None,
    };
    let first = index(batches.first()?)?;
    batches.iter().all(|batch| index(batch) == Some(first)).then_some(first)
}
