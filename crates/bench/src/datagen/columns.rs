//! Columns of rows that a generator makes one by one.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringViewArray};
use arrow::datatypes::{Field, Schema, SchemaRef};

use super::tables::Batches;

/// Rows of a batch.
const BATCH_ROWS: usize = 8192;

/// The columns of some rows, with their names.
pub(super) type Columns = Vec<(&'static str, ArrayRef)>;

/// A column of the numbers of rows.
pub(super) fn numbers<R>(rows: &[R], number: impl Fn(&R) -> i32) -> ArrayRef {
    Arc::new(Int32Array::from_iter_values(rows.iter().map(number)))
}

/// A column of the texts of rows.
pub(super) fn texts<R, T: AsRef<str>>(rows: &[R], text: impl Fn(&R) -> T) -> ArrayRef {
    Arc::new(StringViewArray::from_iter_values(rows.iter().map(text)))
}

/// The schema of columns without nulls.
pub(super) fn schema(columns: &[(&str, ArrayRef)]) -> SchemaRef {
    let field = |(name, column): &(&str, ArrayRef)| Field::new(*name, column.data_type().clone(), false);
    Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
}

/// Batches of rows, by the function that makes columns of some.
pub(super) fn batches<R: 'static>(
    mut rows: impl Iterator<Item = R> + 'static,
    columns: impl Fn(&[R]) -> Columns + 'static,
) -> Batches {
    Box::new(std::iter::from_fn(move || {
        let rows: Vec<R> = rows.by_ref().take(BATCH_ROWS).collect();
        (!rows.is_empty()).then(|| {
            let columns = columns(&rows);
            RecordBatch::try_new(schema(&columns), columns.into_iter().map(|(_, column)| column).collect())
        })
    }))
}
