//! The rows that have arrived, as batches.

use std::time::Instant;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::SchemaRef;
use overspill_join::rows::concat_arrays;

use super::column::{ColumnReader, value_bytes};
use super::metrics::ExchangeMetrics;
use super::sizes::Sizes;
use crate::error::Result;
use crate::rank::Rank;

/// What a rank has sent in a round.
#[derive(Debug)]
pub struct Piece {
    pub rank: Rank,
    pub sizes: Sizes,
    pub columns: Vec<Buffer>,
}

/// Rows of one rank.
#[derive(Debug)]
pub enum Part {
    /// From another rank.
    Received(Piece),
    /// From the rank itself.
    Kept(RecordBatch),
}

impl Part {
    pub fn rows(&self) -> usize {
        match self {
            Self::Received(piece) => piece.sizes.rows,
            Self::Kept(batch) => batch.num_rows(),
        }
    }
}

/// The rows with which a part is a batch by itself. Operators take smaller batches one by one at a cost, so small parts are put together;
/// to put large ones together would copy each row, and hold it twice meanwhile, for nothing.
const OWN_BATCH: usize = 8192;

/// Makes batches of parts.
#[derive(Debug)]
pub struct Table {
    schema: SchemaRef,
    columns: Vec<ColumnReader>,
    metrics: ExchangeMetrics,
}

impl Table {
    pub fn new(schema: &SchemaRef, metrics: ExchangeMetrics) -> Self {
        Self { schema: schema.clone(), columns: schema.fields().iter().map(ColumnReader::new).collect(), metrics }
    }

    /// The rows of all parts, one part after the other. No part may be empty. A large part shares its columns with its batch, and small ones that
    /// follow each other become one batch, unless their dictionaries together have more values than their codes can name.
    pub fn batches(&mut self, parts: &[Part]) -> Result<Vec<RecordBatch>> {
        let mut batches = vec![];
        for together in parts.chunk_by(|part, next| part.rows().max(next.rows()) < OWN_BATCH) {
            match self.one_batch(together) {
                Ok(batch) => batches.push(batch),
                Err(_) if together.len() > 1 => {
                    for part in together.chunks(1) {
                        batches.push(self.one_batch(part)?);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(batches)
    }

    fn one_batch(&mut self, parts: &[Part]) -> Result<RecordBatch> {
        let rows = parts.iter().map(Part::rows).sum();
        let mut columns = Vec::with_capacity(self.columns.len());
        for (number, reader) in self.columns.iter_mut().enumerate() {
            let reading = Instant::now();
            let arrays = parts.iter().map(|part| match part {
                Part::Kept(batch) => Ok(batch.column(number).clone()),
                Part::Received(Piece { rank, sizes, columns }) => {
                    reader.read(sizes.columns[number].0, columns[number].clone(), sizes.rows, *rank)
                }
            });
            let arrays = arrays.collect::<Result<Vec<_>>>()?;
            self.metrics.decompressed(reading.elapsed());
            columns.push(concatenated(&arrays, rows, reader)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}

/// One array of all. Values of fixed width go to a buffer that is allocated once for all of them.
fn concatenated(arrays: &[ArrayRef], rows: usize, reader: &ColumnReader) -> Result<ArrayRef> {
    if let Some(width) = value_bytes(reader.data_type())
        && arrays.len() > 1
        && arrays.iter().all(|array| array.null_count() == 0)
    {
        let mut values = MutableBuffer::new(rows * width);
        for array in arrays {
            let data = array.to_data();
            values.extend_from_slice(&data.buffers()[0][data.offset() * width..][..data.len() * width]);
        }
        return Ok(make_array(ColumnReader::values(reader.data_type(), rows, values.into())?));
    }
    Ok(concat_arrays(arrays, 1)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;
    use crate::all_to_all::column::Form;

    /// Rows with numbers that begin at `first`, from another rank.
    fn piece(first: i64, rows: usize) -> Part {
        let values = Buffer::from_vec((first..first + rows as i64).collect::<Vec<i64>>());
        let sizes = Sizes { rows, columns: vec![(Form::Values, values.len())] };
        Part::Received(Piece { rank: 1, sizes, columns: vec![values] })
    }

    fn kept(first: i64, rows: usize) -> Part {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows as i64));
        Part::Kept(RecordBatch::try_from_iter([("number", numbers)]).unwrap())
    }

    fn numbers(batch: &RecordBatch) -> &[i64] {
        batch.column(0).as_primitive::<Int64Type>().values()
    }

    #[test]
    fn small_parts_are_put_together_and_large_ones_are_not_copied() {
        let large = OWN_BATCH;
        let sizes = [3, 4, large, large + 1, large - 1, 5, large];
        let mut first = 0;
        let part = |(number, rows): (usize, usize)| {
            first += rows as i64;
            let begin = first - rows as i64;
            if number % 2 == 0 { piece(begin, rows) } else { kept(begin, rows) }
        };
        let parts: Vec<_> = sizes.into_iter().enumerate().map(part).collect();
        let Part::Kept(own) = kept(0, 0) else { unreachable!("rows that the rank keeps") };
        let batches = Table::new(&own.schema(), ExchangeMetrics::default()).batches(&parts).unwrap();
        let rows: Vec<_> = batches.iter().map(RecordBatch::num_rows).collect();
        assert_eq!(rows, [7, large, large + 1, large + 4, large]);
        assert!(batches.iter().flat_map(numbers).copied().eq(0..first));
        let Part::Received(piece) = &parts[2] else { unreachable!("it was received") };
        assert_eq!(numbers(&batches[1]).as_ptr().cast(), piece.columns[0].as_ptr());
        let Part::Kept(batch) = &parts[3] else { unreachable!("it was kept") };
        assert_eq!(numbers(&batches[2]).as_ptr(), numbers(batch).as_ptr());
    }
}
