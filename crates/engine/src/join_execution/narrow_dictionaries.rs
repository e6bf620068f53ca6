//! Preserves dictionaries with 8-bit keys across a spill.

use std::sync::{Arc, OnceLock};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

/// The dictionary of each column with 8-bit keys, as it was when rows were first moved to disk.
///
/// A batch that is read back has a dictionary of its own. An operator that combines rows of several such batches, a sort for
/// instance, soon runs out of 8-bit keys: Arrow's kernels merge different dictionaries with a cache that may keep a value
/// twice. So rows that had one dictionary get it back.
#[derive(Debug)]
pub(crate) struct NarrowDictionaries {
    columns: Vec<(usize, OnceLock<ArrayRef>)>,
}

impl NarrowDictionaries {
    pub fn new(schema: &SchemaRef) -> Self {
        let is_narrow = |data_type: &DataType| match data_type {
            DataType::Dictionary(key, _) => key.primitive_width() == Some(1),
            _ => false,
        };
        let columns = (0..schema.fields().len())
            .filter(|index| is_narrow(schema.field(*index).data_type()))
            .map(|index| (index, OnceLock::new()))
            .collect();
        Self { columns }
    }

    /// Records the dictionaries of rows that are moved to disk.
    pub fn note(&self, batch: &RecordBatch) {
        for (column, dictionary) in &self.columns {
            dictionary.get_or_init(|| Arc::clone(batch.column(*column).as_any_dictionary().values()));
        }
    }

    /// Gives rows that were read back their original dictionaries.
    pub fn restore(&self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        let mut columns = None;
        for (column, dictionary) in &self.columns {
            let read = batch.column(*column).as_any_dictionary();
            if let Some(values) = dictionary.get()
                && read.values().to_data() == values.to_data()
            {
                columns.get_or_insert_with(|| batch.columns().to_vec())[*column] = read.with_values(Arc::clone(values));
            }
        }
        match columns {
            Some(columns) => RecordBatch::try_new(batch.schema(), columns),
            None => Ok(batch),
        }
    }
}
