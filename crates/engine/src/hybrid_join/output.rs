//! Output rows gathered to batches of the size that the session asks for.

use arrow::array::{Array, ArrayData, AsArray, RecordBatch};
use arrow::compute::BatchCoalescer;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

/// Rows are handed on as they come if they make this part of a full batch: beyond it, what an operator does once a
/// batch costs less than copying the rows.
const WORTH_HANDING_ON: usize = 8;

/// Gathers rows.
///
/// Rows whose dictionaries differ are kept apart: Arrow's kernels join such columns by a cache that may keep a value
/// twice, and then run out of keys of a narrow type that has keys enough for every batch.
pub(crate) struct OutputBatches {
    coalescer: BatchCoalescer,
    /// The columns that are dictionaries, with the values of the rows gathered last.
    dictionaries: Vec<(usize, Option<ArrayData>)>,
}

impl OutputBatches {
    pub fn new(schema: &SchemaRef, batch_size: usize) -> Self {
        let is_dictionary = |index: &usize| matches!(schema.field(*index).data_type(), DataType::Dictionary(..));
        let dictionaries = (0..schema.fields().len()).filter(is_dictionary).map(|index| (index, None)).collect();
        let coalescer = BatchCoalescer::new(SchemaRef::clone(schema), batch_size)
            .with_biggest_coalesce_batch_size(Some(batch_size / WORTH_HANDING_ON));
        Self { coalescer, dictionaries }
    }

    /// Adds rows.
    pub fn push(&mut self, rows: RecordBatch) -> Result<(), ArrowError> {
        let mut differs = false;
        for (column, last) in &mut self.dictionaries {
            let values = rows.column(*column).as_any_dictionary().values().to_data();
            if !last.as_ref().is_some_and(|last| last.ptr_eq(&values)) {
                differs = true;
                *last = Some(values);
            }
        }
        if differs {
            self.coalescer.finish_buffered_batch()?;
        }
        self.coalescer.push_batch(rows)
    }

    /// The next full batch.
    pub fn next(&mut self) -> Option<RecordBatch> {
        self.coalescer.next_completed_batch()
    }

    /// Makes a batch of the rows that have been added, even if they are few.
    pub fn finish(&mut self) -> Result<(), ArrowError> {
        self.coalescer.finish_buffered_batch()
    }

    /// Whether all rows have been taken.
    pub fn is_empty(&self) -> bool {
        self.coalescer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, DictionaryArray, Int8Array, StringArray};

    use super::*;

    /// Rows `from..from + 60` of a table of 8-bit keys and the given 100 values.
    fn rows(values: &ArrayRef, from: i8) -> RecordBatch {
        let column: ArrayRef =
            Arc::new(DictionaryArray::new(Int8Array::from_iter_values(from..from + 60), Arc::clone(values)));
        RecordBatch::try_from_iter([("c", column)]).unwrap()
    }

    #[test]
    fn rows_of_different_dictionaries_stay_apart() {
        let forwards: ArrayRef = Arc::new(StringArray::from_iter_values((0..100).map(|value| format!("{value}"))));
        let backwards: ArrayRef =
            Arc::new(StringArray::from_iter_values((0..100).rev().map(|value| format!("{value}"))));
        let pushed = [(&forwards, 0), (&forwards, 40), (&backwards, 0), (&forwards, 40)];
        let mut output = OutputBatches::new(&rows(&forwards, 0).schema(), 1000);
        for (values, from) in pushed {
            output.push(rows(values, from)).unwrap();
        }
        output.finish().unwrap();
        let batches = std::iter::from_fn(|| output.next()).collect::<Vec<_>>();
        assert_eq!(batches.iter().map(|batch| batch.num_rows()).collect::<Vec<_>>(), [120, 60, 60]);
        let texts = |batch: &RecordBatch| {
            let column = arrow::compute::cast(batch.column(0), &DataType::Utf8).unwrap();
            column.as_string::<i32>().iter().map(|text| text.unwrap().to_owned()).collect::<Vec<_>>()
        };
        let expected = pushed.iter().flat_map(|(values, from)| texts(&rows(values, *from))).collect::<Vec<_>>();
        assert_eq!(batches.iter().flat_map(texts).collect::<Vec<_>>(), expected);
    }
}
