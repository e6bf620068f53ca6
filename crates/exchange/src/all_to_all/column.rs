//! A column as a message.

use arrow::array::{Array, ArrayRef, RecordBatch, make_array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use overspill_codec::{BlockReader, BlockWriter};

use crate::error::{Error, Result};
use crate::rank::Rank;

/// What the bytes of a message are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The values of an array of fixed width without nulls, as they lie in memory.
    Values,
    /// A block of one column (`docs/codec.md`), compressed or not.
    Block,
}

/// The bytes of a value, where a column may be sent as its values alone.
pub fn value_bytes(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Dictionary(..) | DataType::RunEndEncoded(..) => None,
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok().filter(|width| *width > 0),
        other => other.primitive_width(),
    }
}

/// A column as it is sent.
pub type Column = (Form, Buffer);

/// Writes the messages of all columns.
#[derive(Debug)]
pub struct ColumnWriters(Vec<ColumnWriter>);

impl ColumnWriters {
    pub fn new(schema: &Schema) -> Self {
        Self(schema.fields().iter().map(ColumnWriter::new).collect())
    }

    /// The messages of rows; none if there are no rows.
    pub fn write(&mut self, rows: &RecordBatch, is_compressed: bool) -> Result<Vec<Column>> {
        if rows.num_rows() == 0 {
            return Ok(vec![]);
        }
        self.0.iter_mut().zip(rows.columns()).map(|(writer, array)| writer.write(array, is_compressed)).collect()
    }
}

/// Writes the messages of one column.
#[derive(Debug)]
struct ColumnWriter {
    schema: SchemaRef,
    compressed: BlockWriter,
    plain: BlockWriter,
}

impl ColumnWriter {
    fn new(field: &FieldRef) -> Self {
        let schema = SchemaRef::new(Schema::new(vec![field.clone()]));
        Self { schema, compressed: BlockWriter::default(), plain: BlockWriter::plain() }
    }

    /// The message of an array. Values that need not be compressed are shared with it.
    fn write(&mut self, array: &ArrayRef, is_compressed: bool) -> Result<Column> {
        if let Some(width) = value_bytes(array.data_type())
            && !is_compressed
            && array.null_count() == 0
        {
            let data = array.to_data();
            return Ok((Form::Values, data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)));
        }
        let batch = RecordBatch::try_new(self.schema.clone(), vec![array.clone()])?;
        let writer = if is_compressed { &mut self.compressed } else { &mut self.plain };
        Ok((Form::Block, Buffer::from_slice_ref(writer.write(&batch)?)))
    }
}

/// Reads the messages of one column.
#[derive(Debug)]
pub struct ColumnReader {
    data_type: DataType,
    blocks: BlockReader,
}

impl ColumnReader {
    pub fn new(field: &FieldRef) -> Self {
        let blocks = BlockReader::new(SchemaRef::new(Schema::new(vec![field.clone()])));
        Self { data_type: field.data_type().clone(), blocks }
    }

    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// The array of a message. Values are shared with it.
    pub fn read(&mut self, form: Form, message: Buffer, rows: usize, rank: Rank) -> Result<ArrayRef> {
        let array = match form {
            Form::Block => self.blocks.read(&message)?.remove_column(0),
            Form::Values => {
                let bytes = value_bytes(&self.data_type).map(|width| width * rows);
                if bytes != Some(message.len()) {
                    let what = format!("{} bytes for {rows} values of type {}", message.len(), self.data_type);
                    return Err(Error::Unexpected { rank, what });
                }
                make_array(Self::values(&self.data_type, rows, message)?)
            }
        };
        if array.len() != rows {
            let what = format!("a column of {} rows in place of {rows}", array.len());
            return Err(Error::Unexpected { rank, what });
        }
        Ok(array)
    }

    /// An array of values without nulls. They are copied if they are not aligned for their type.
    pub fn values(data_type: &DataType, rows: usize, values: Buffer) -> Result<arrow::array::ArrayData> {
        let builder = arrow::array::ArrayData::builder(data_type.clone()).len(rows).add_buffer(values);
        Ok(builder.align_buffers(true).build()?)
    }
}
