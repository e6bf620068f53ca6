//! Collects output rows into batches of the session's batch size.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::compute::BatchCoalescer;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use overspill_join::memory::{MAX_COPY_BYTES, compact_column, copied_bytes};

/// Batches of at least a full batch's size divided by this number are returned uncopied: beyond that size, an operator's cost
/// per batch is less than the cost of copying the rows.
const WORTH_HANDING_ON: usize = 8;

/// Collects rows up to a number of rows and of bytes.
///
/// Rows with different dictionaries are kept apart: Arrow's kernels merge such columns with a cache that may keep a value
/// twice, and then run out of keys of a narrow type that has enough keys for every single batch.
pub struct OutputBatches {
    coalescer: BatchCoalescer,
    /// Rows of a full batch.
    batch_size: usize,
    /// An upper bound of the bytes of the collected rows.
    bytes: usize,
    /// Full batches, including those that are returned uncopied.
    full: VecDeque<RecordBatch>,
    /// The dictionary columns, with the values of the last collected rows.
    dictionaries: Vec<(usize, Option<ArrayRef>)>,
    /// The columns that hold texts in blocks.
    views: Vec<usize>,
}

impl OutputBatches {
    /// Collects rows with these columns, up to `batch_size` of them and 4 MiB.
    pub fn new(schema: &SchemaRef, batch_size: usize) -> Self {
        let is_dictionary = |index: &usize| matches!(schema.field(*index).data_type(), DataType::Dictionary(..));
        let is_view =
            |index: &usize| matches!(schema.field(*index).data_type(), DataType::Utf8View | DataType::BinaryView);
        let views = (0..schema.fields().len()).filter(is_view).collect();
        let dictionaries = (0..schema.fields().len()).filter(is_dictionary).map(|index| (index, None)).collect();
        let coalescer = BatchCoalescer::new(SchemaRef::clone(schema), batch_size)
            .with_biggest_coalesce_batch_size(Some(batch_size / WORTH_HANDING_ON));
        Self { coalescer, batch_size, bytes: 0, full: VecDeque::new(), dictionaries, views }
    }

    /// Adds rows.
    ///
    /// # Errors
    /// Arrow's, if they cannot be copied.
    pub fn push(&mut self, rows: RecordBatch) -> Result<(), ArrowError> {
        let (rows, differs) = self.with_last_dictionaries(rows)?;
        let bytes = copied_bytes(&rows);
        if differs || self.bytes.saturating_add(bytes) > MAX_COPY_BYTES {
            self.finish()?;
        }
        if bytes >= MAX_COPY_BYTES / WORTH_HANDING_ON {
            self.finish()?;
            self.full.push_back(rows);
            return Ok(());
        }
        self.bytes += bytes;
        self.coalescer.push_batch(rows)?;
        while let Some(batch) = self.coalescer.next_completed_batch() {
            self.full.push_back(self.without_spare_room(batch)?);
            // The remaining rows came last.
            self.bytes = bytes;
        }
        Ok(())
    }

    /// Gives columns of NULLs the dictionary of the last collected rows, as an outer join gives rows without a match
    /// dictionaries of their own. Also returns whether other dictionaries differ from the last ones.
    fn with_last_dictionaries(&mut self, rows: RecordBatch) -> Result<(RecordBatch, bool), ArrowError> {
        if self.dictionaries.is_empty() {
            return Ok((rows, false));
        }
        let (schema, mut columns, count) = rows.into_parts();
        let mut differs = false;
        for (column, last) in &mut self.dictionaries {
            let dictionary = columns[*column].as_any_dictionary();
            let values = dictionary.values();
            match last {
                Some(last) if last.to_data().ptr_eq(&values.to_data()) => {}
                Some(last) if dictionary.null_count() == dictionary.len() && values.len() <= last.len() => {
                    columns[*column] = dictionary.with_values(Arc::clone(last));
                }
                _ => {
                    differs = true;
                    *last = Some(Arc::clone(values));
                }
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok((RecordBatch::try_new_with_options(schema, columns, &options)?, differs))
    }

    /// The next full batch.
    pub fn next_full(&mut self) -> Option<RecordBatch> {
        self.full.pop_front()
    }

    /// Makes a batch of the remaining rows, even if they are few.
    ///
    /// # Errors
    /// Arrow's, if they cannot be copied.
    pub fn finish(&mut self) -> Result<(), ArrowError> {
        self.coalescer.finish_buffered_batch()?;
        if let Some(batch) = self.coalescer.next_completed_batch() {
            self.full.push_back(self.without_spare_room(batch)?);
        }
        self.bytes = 0;
        Ok(())
    }

    /// Frees the memory that the coalescer allocates for rows that did not come: room for a full batch in each column of
    /// fixed width, and blocks of up to 1 MiB for texts of view columns.
    fn without_spare_room(&self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        let is_small = batch.num_rows() <= self.batch_size / 2;
        if self.views.is_empty() && !is_small {
            return Ok(batch);
        }
        let (schema, mut columns, rows) = batch.into_parts();
        for column in &self.views {
            columns[*column] = compact_column(&columns[*column])?;
        }
        if is_small {
            columns.iter_mut().for_each(Array::shrink_to_fit);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema, columns, &options)
    }

    /// Whether all rows have been returned.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty() && self.coalescer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{DictionaryArray, Int8Array, Int64Array, StringArray, StringViewArray, new_null_array};

    use super::*;

    /// Rows `from..from + 60` of a table of 8-bit keys and the given 100 values.
    fn rows(values: &ArrayRef, from: i8) -> RecordBatch {
        let column: ArrayRef =
            Arc::new(DictionaryArray::new(Int8Array::from_iter_values(from..from + 60), Arc::clone(values)));
        RecordBatch::try_from_iter_with_nullable([("c", column, true)]).unwrap()
    }

    #[test]
    fn batches_take_the_memory_of_their_rows() {
        let texts =
            StringViewArray::from_iter_values((0..100).map(|row| format!("a text of some words, in row {row}")));
        let numbers = Int64Array::from_iter((0..100).map(|row| (row % 3 > 0).then_some(row)));
        let rows = RecordBatch::try_from_iter([("c", Arc::new(texts) as ArrayRef), ("d", Arc::new(numbers))]).unwrap();
        let mut output = OutputBatches::new(&rows.schema(), 8192);
        for _ in 0..200 {
            output.push(rows.slice(0, 50)).unwrap();
            output.finish().unwrap();
        }
        let batches: Vec<_> = std::iter::from_fn(|| output.next_full()).collect();
        assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 200 * 50);
        assert!(batches.iter().all(|batch| batch.column(0).get_buffer_memory_size() < 8000));
        assert!(batches.iter().all(|batch| batch.column(1).get_buffer_memory_size() < 1000));
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
        let batches = std::iter::from_fn(|| output.next_full()).collect::<Vec<_>>();
        assert_eq!(batches.iter().map(|batch| batch.num_rows()).collect::<Vec<_>>(), [120, 60, 60]);
        let texts = |batch: &RecordBatch| {
            let column = arrow::compute::cast(batch.column(0), &DataType::Utf8).unwrap();
            column.as_string::<i32>().iter().map(|text| text.unwrap().to_owned()).collect::<Vec<_>>()
        };
        // Rows without a value can be in a batch with any others.
        let null = || {
            let nulls = new_null_array(rows(&forwards, 0).column(0).data_type(), 1);
            RecordBatch::try_from_iter_with_nullable([("c", nulls, true)]).unwrap()
        };
        for from in 0..3 {
            output.push(rows(&forwards, from)).unwrap();
            output.push(null()).unwrap();
        }
        output.finish().unwrap();
        let with_nulls = std::iter::from_fn(|| output.next_full()).collect::<Vec<_>>();
        assert_eq!(with_nulls.iter().map(|batch| batch.num_rows()).collect::<Vec<_>>(), [3 * 61]);
        assert_eq!(with_nulls[0].column(0).logical_null_count(), 3);
        let expected = pushed.iter().flat_map(|(values, from)| texts(&rows(values, *from))).collect::<Vec<_>>();
        assert_eq!(batches.iter().flat_map(texts).collect::<Vec<_>>(), expected);
    }
}
