//! CSV and JSON.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::writer::{JsonFormat, Writer, WriterBuilder};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use overspill::files::csv::CsvText;

use super::RowWriter;

pub struct CsvWriter<W: Write> {
    destination: W,
    text: CsvText,
    schema: SchemaRef,
    has_header: bool,
}

impl<W: Write> CsvWriter<W> {
    pub fn new(destination: W, schema: &SchemaRef, text: CsvText) -> Self {
        Self { destination, text, schema: Arc::clone(schema), has_header: false }
    }

    /// The header, on the first call only.
    fn begin(&mut self) -> Vec<u8> {
        let mut lines = Vec::new();
        if !std::mem::replace(&mut self.has_header, true) {
            self.text.header(&self.schema, &mut lines);
        }
        lines
    }
}

impl<W: Write> RowWriter for CsvWriter<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let mut lines = self.begin();
        self.text.rows(batch, &mut lines)?;
        Ok(self.destination.write_all(&lines)?)
    }

    fn finish(&mut self) -> Result<(), ArrowError> {
        // A result without rows has a header, too.
        let lines = self.begin();
        Ok(self.destination.write_all(&lines)?)
    }
}

pub struct JsonWriter<W: Write, F: JsonFormat> {
    writer: Writer<W, F>,
    plain: PlainColumns,
    /// Whether a newline is needed after the last object.
    ends_line: bool,
}

impl<W: Write, F: JsonFormat> JsonWriter<W, F> {
    pub fn new(destination: W, schema: &SchemaRef, ends_line: bool) -> Self {
        Self {
            writer: WriterBuilder::new().with_explicit_nulls(true).build(destination),
            plain: PlainColumns::new(schema),
            ends_line,
        }
    }
}

impl<W: Write, F: JsonFormat> RowWriter for JsonWriter<W, F> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.writer.write(&self.plain.of(batch)?)
    }

    fn finish(&mut self) -> Result<(), ArrowError> {
        self.writer.finish()?;
        if self.ends_line {
            self.writer.get_mut().write_all(b"\n")?;
        }
        Ok(())
    }
}

/// Converts columns with types that JSON cannot express to the text that a table would show.
struct PlainColumns {
    schema: SchemaRef,
    replaced: Vec<usize>,
}

impl PlainColumns {
    fn new(schema: &SchemaRef) -> Self {
        let is_foreign = |column: &usize| matches!(schema.field(*column).data_type(), DataType::Interval(_));
        let replaced: Vec<_> = (0..schema.fields().len()).filter(is_foreign).collect();
        if replaced.is_empty() {
            return Self { schema: Arc::clone(schema), replaced };
        }
        let fields = schema.fields().iter().enumerate().map(|(column, field)| {
            if replaced.contains(&column) {
                Field::new(field.name(), DataType::Utf8, true)
            } else {
                field.as_ref().clone()
            }
        });
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Self { schema, replaced }
    }

    fn of(&self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        if self.replaced.is_empty() {
            return Ok(batch.clone());
        }
        let mut columns = batch.columns().to_vec();
        for column in &self.replaced {
            columns[*column] = as_text(&columns[*column])?;
        }
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
    }
}

fn as_text(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(column.as_ref(), &options)?;
    let text = |row| column.is_valid(row).then(|| formatter.value(row).try_to_string()).transpose();
    Ok(Arc::new((0..column.len()).map(text).collect::<Result<StringArray, _>>()?))
}
