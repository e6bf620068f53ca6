//! Tables in GPU memory.

use arrow::array::{Array, ArrayData, ArrayRef, RecordBatch, make_array};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{DataType, SchemaRef};
use overspill_kernels::KeyColumn;
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;

use crate::error::{Error, Result};

/// The widths of values that kernels move.
const WIDTHS: [usize; 5] = [1, 2, 4, 8, 16];

/// A column of values of a fixed width, none of them null.
#[derive(Debug)]
pub struct DeviceColumn {
    /// The values, one after the other.
    pub values: DeviceBuffer,
    /// Bytes of a value: 1, 2, 4, 8 or 16.
    pub width: u64,
    /// Whether values are floats, whose zeros are equal as keys.
    pub is_float: bool,
}

impl DeviceColumn {
    /// The column as a part of a key.
    pub(super) fn key(&self) -> KeyColumn<'_> {
        KeyColumn { values: self.values.view(), width: self.width, is_float: self.is_float, validity: None }
    }
}

/// A table in the memory of a GPU, column by column.
#[derive(Debug)]
pub struct DeviceTable {
    rows: u64,
    columns: Vec<DeviceColumn>,
}

impl DeviceTable {
    /// A table of these columns.
    ///
    /// # Errors
    /// If a column has another number of rows.
    pub fn new(rows: u64, columns: Vec<DeviceColumn>) -> Result<Self> {
        if let Some(wrong) = columns.iter().find(|column| column.values.bytes() != rows * column.width) {
            return Err(Error::Invalid(format!(
                "a column of {} bytes is none of {rows} values of {} bytes",
                wrong.values.bytes(),
                wrong.width
            )));
        }
        Ok(Self { rows, columns })
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The columns.
    pub fn columns(&self) -> &[DeviceColumn] {
        &self.columns
    }

    /// Copies rows to GPU memory. `O(n)`.
    ///
    /// # Errors
    /// If a column has nulls, or values of another width than 1, 2, 4, 8 or 16 bytes, or memory does not suffice.
    pub fn upload(stream: &Stream, schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Self> {
        let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        let columns = schema.fields().iter().enumerate().map(|(number, field)| {
            let width = width_of(field.data_type()).ok_or_else(|| {
                Error::Invalid(format!(
                    "column {} has values of the type {}, which kernels do not move",
                    field.name(),
                    field.data_type()
                ))
            })?;
            let arrays: Vec<ArrayData> = batches.iter().map(|batch| batch.column(number).to_data()).collect();
            if arrays.iter().any(|array| array.null_count() > 0) {
                return Err(Error::Invalid(format!("column {} has nulls, which kernels do not move", field.name())));
            }
            let mut values = DeviceBuffer::new(stream.device(), rows * width as u64)?;
            let mut offset = 0;
            let parts = arrays.iter().map(|array| {
                let begin = array.offset() * width;
                let part = &array.buffers()[0].as_slice()[begin..begin + array.len() * width];
                offset += part.len() as u64;
                (offset - part.len() as u64, part)
            });
            values.write_all(stream, &parts.collect::<Vec<_>>())?;
            Ok(DeviceColumn { values, width: width as u64, is_float: field.data_type().is_floating() })
        });
        Self::new(rows, columns.collect::<Result<_>>()?)
    }

    /// Copies all rows to CPU memory, as columns of this schema. `O(n)`.
    ///
    /// # Errors
    /// If columns are of other widths, or a copy fails.
    pub fn download(&self, stream: &Stream, schema: &SchemaRef) -> Result<RecordBatch> {
        let rows = self.rows as usize;
        let arrays = schema.fields().iter().zip(&self.columns).map(|(field, column)| {
            if width_of(field.data_type()).map(|width| width as u64) != Some(column.width) {
                return Err(Error::Invalid(format!(
                    "column {} is of the type {}, and its values have {} bytes",
                    field.name(),
                    field.data_type(),
                    column.width
                )));
            }
            let mut values = MutableBuffer::from_len_zeroed(rows * column.width as usize);
            column.values.read_into(stream, values.as_slice_mut())?;
            let data = ArrayData::builder(field.data_type().clone()).len(rows).add_buffer(Buffer::from(values));
            Ok(make_array(data.build()?))
        });
        Ok(RecordBatch::try_new(schema.clone(), arrays.collect::<Result<Vec<ArrayRef>>>()?)?)
    }
}

/// Bytes of a value; `None` if kernels do not move such values.
fn width_of(data_type: &DataType) -> Option<usize> {
    data_type.primitive_width().filter(|width| WIDTHS.contains(width))
}
