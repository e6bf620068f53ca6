//! Tables in GPU memory.

use arrow::array::{ArrayData, ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{Buffer, MutableBuffer, NullBuffer};
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use overspill_kernels::{Kernels, KeyColumn, ValidityPacker};
use overspill_machine::driver::Stream;
use overspill_machine::memory::DeviceBuffer;

use crate::error::{Error, Result};

/// The widths of values that kernels move.
const WIDTHS: [usize; 5] = [1, 2, 4, 8, 16];

/// The byte of a value that is there. That of a null is 0.
pub(super) const VALID: u8 = 1;

/// A column of values of a fixed width.
#[derive(Debug)]
pub struct DeviceColumn {
    /// The values, one after the other. Those that are null have any bytes.
    pub values: DeviceBuffer,
    /// Bytes of a value: 1, 2, 4, 8 or 16.
    pub width: u64,
    /// Whether values are floats, whose zeros are equal as keys.
    pub is_float: bool,
    /// A byte for each value: 1, or 0 if it is null. Without it, none is.
    pub validity: Option<DeviceBuffer>,
}

impl DeviceColumn {
    /// The values and the validity, with the bytes of one in each.
    pub(super) fn arrays(&self) -> impl Iterator<Item = (&DeviceBuffer, u64)> {
        std::iter::once((&self.values, self.width)).chain(self.validity.iter().map(|validity| (validity, 1)))
    }

    /// The arrays of a field, one after the other in the column.
    fn upload(stream: &Stream, field: &FieldRef, arrays: &[ArrayData]) -> Result<Self> {
        let width = width_of(field.data_type()).ok_or_else(|| {
            let (name, data_type) = (field.name(), field.data_type());
            Error::Invalid(format!("column {name} has values of the type {data_type}, which kernels do not move"))
        })?;
        let rows: u64 = arrays.iter().map(|array| array.len() as u64).sum();
        let mut values = DeviceBuffer::new(stream.device(), rows * width as u64)?;
        let mut offset = 0;
        let parts = arrays.iter().map(|array| {
            let begin = array.offset() * width;
            let part = &array.buffers()[0].as_slice()[begin..begin + array.len() * width];
            offset += part.len() as u64;
            (offset - part.len() as u64, part)
        });
        values.write_all(stream, &parts.collect::<Vec<_>>())?;
        let validity = if arrays.iter().any(|array| array.null_count() > 0) {
            let bytes =
                arrays.iter().flat_map(|array| (0..array.len()).map(|row| if array.is_null(row) { 0 } else { VALID }));
            Some(DeviceBuffer::from_slice(stream, &bytes.collect::<Vec<u8>>())?)
        } else {
            None
        };
        Ok(Self { values, width: width as u64, is_float: field.data_type().is_floating(), validity })
    }

    /// The column as an array of a type of its width.
    fn download(&self, stream: &Stream, rows: usize, data_type: &DataType) -> Result<ArrayRef> {
        let mut values = MutableBuffer::from_len_zeroed(rows * self.width as usize);
        self.values.read_into(stream, values.as_slice_mut())?;
        let nulls = match &self.validity {
            Some(validity) => {
                let bytes: Vec<u8> = validity.read(stream, rows)?;
                Some(NullBuffer::from_iter(bytes.into_iter().map(|byte| byte != 0)))
            }
            None => None,
        };
        let data = ArrayData::builder(data_type.clone()).len(rows).add_buffer(Buffer::from(values)).nulls(nulls);
        Ok(make_array(data.build()?))
    }
}

/// The validity of the columns of a key as kernels read it: a bit for each row.
#[derive(Debug)]
pub(super) struct KeyBits {
    /// The columns, and the bits of those that have nulls.
    columns: Vec<(usize, Option<DeviceBuffer>)>,
}

impl KeyBits {
    /// Packs the bits, and waits for completion. Takes a bit of GPU memory for each row of a column with nulls.
    ///
    /// # Errors
    /// If memory does not suffice, or the device fails.
    pub fn new(kernels: &Kernels, stream: &Stream, table: &DeviceTable, keys: &[usize]) -> Result<Self> {
        let columns = keys.iter().map(|key| {
            let bits = match &table.columns[*key].validity {
                Some(bytes) => Some(ValidityPacker::new(kernels)?.run(stream, table.rows, bytes.view())?),
                None => None,
            };
            Ok((*key, bits))
        });
        Ok(Self { columns: columns.collect::<Result<_>>()? })
    }

    /// The key of the table whose bits these are.
    pub fn keys<'a>(&'a self, table: &'a DeviceTable) -> Vec<KeyColumn<'a>> {
        let key = |(number, bits): &'a (usize, Option<DeviceBuffer>)| {
            let DeviceColumn { values, width, is_float, .. } = &table.columns[*number];
            let validity = bits.as_ref().map(DeviceBuffer::view);
            KeyColumn { values: values.view(), width: *width, is_float: *is_float, validity }
        };
        self.columns.iter().map(key).collect()
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
        let has_its_rows = |(array, width): &(&DeviceBuffer, u64)| Some(array.bytes()) == rows.checked_mul(*width);
        let wrong = columns.iter().flat_map(DeviceColumn::arrays).find(|array| !has_its_rows(array));
        if let Some((wrong, width)) = wrong {
            let bytes = wrong.bytes();
            return Err(Error::Invalid(format!("an array of {bytes} bytes is none of {rows} values of {width} bytes")));
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

    /// Refuses columns that there are not.
    pub(super) fn check_columns(&self, what: &str, columns: &[usize]) -> Result<()> {
        if columns.iter().all(|column| *column < self.columns.len()) {
            return Ok(());
        }
        Err(Error::Invalid(format!("rows of {} columns have no {what} {columns:?}", self.columns.len())))
    }

    /// Copies rows to GPU memory. `O(n)`.
    ///
    /// # Errors
    /// If a column has values of another width than 1, 2, 4, 8 or 16 bytes, or memory does not suffice.
    pub fn upload(stream: &Stream, schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Self> {
        let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        let columns = schema.fields().iter().enumerate().map(|(number, field)| {
            let arrays: Vec<ArrayData> = batches.iter().map(|batch| batch.column(number).to_data()).collect();
            DeviceColumn::upload(stream, field, &arrays)
        });
        Self::new(rows, columns.collect::<Result<_>>()?)
    }

    /// Copies all rows to CPU memory, as columns of this schema. `O(n)`.
    ///
    /// # Errors
    /// If there are other columns, or of other widths, a column has nulls that its field must not have, or a copy fails.
    pub fn download(&self, stream: &Stream, schema: &SchemaRef) -> Result<RecordBatch> {
        if schema.fields().len() != self.columns.len() {
            let (own, asked) = (self.columns.len(), schema.fields().len());
            return Err(Error::Invalid(format!("{own} columns in GPU memory are not the {asked} of a schema")));
        }
        let arrays = schema.fields().iter().zip(&self.columns).map(|(field, column)| {
            if width_of(field.data_type()).map(|width| width as u64) != Some(column.width) {
                return Err(Error::Invalid(format!(
                    "column {} is of the type {}, and its values have {} bytes",
                    field.name(),
                    field.data_type(),
                    column.width
                )));
            }
            column.download(stream, self.rows as usize, field.data_type())
        });
        let arrays = arrays.collect::<Result<Vec<ArrayRef>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows as usize));
        Ok(RecordBatch::try_new_with_options(schema.clone(), arrays, &options)?)
    }
}

/// Bytes of a value; `None` if kernels do not move such values.
fn width_of(data_type: &DataType) -> Option<usize> {
    data_type.primitive_width().filter(|width| WIDTHS.contains(width))
}
