//! The rows of a round, put together.

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::SchemaRef;
use overspill_join::rows::concat_arrays;

use super::column::{ColumnReader, value_bytes};
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

/// Puts rounds together.
#[derive(Debug)]
pub struct Table {
    schema: SchemaRef,
    columns: Vec<ColumnReader>,
}

impl Table {
    pub fn new(schema: &SchemaRef) -> Self {
        Self { schema: schema.clone(), columns: schema.fields().iter().map(ColumnReader::new).collect() }
    }

    /// Puts the rows of all parts into one batch, one part after the other. No part may be empty. Parts whose dictionaries together have more
    /// values than their codes can name become a batch each.
    pub fn put_together(&mut self, parts: &[Part]) -> Result<Vec<RecordBatch>> {
        match self.one_batch(parts) {
            Ok(batch) => Ok(vec![batch]),
            Err(_) if parts.len() > 1 => parts.chunks(1).map(|part| self.one_batch(part)).collect(),
            Err(error) => Err(error),
        }
    }

    fn one_batch(&mut self, parts: &[Part]) -> Result<RecordBatch> {
        let rows = parts.iter().map(Part::rows).sum();
        let mut columns = Vec::with_capacity(self.columns.len());
        for (number, reader) in self.columns.iter_mut().enumerate() {
            let arrays = parts.iter().map(|part| match part {
                Part::Kept(batch) => Ok(batch.column(number).clone()),
                Part::Received(Piece { rank, sizes, columns }) => {
                    reader.read(sizes.columns[number].0, columns[number].clone(), sizes.rows, *rank)
                }
            });
            let arrays = arrays.collect::<Result<Vec<_>>>()?;
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
