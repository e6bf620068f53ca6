//! Results on their way out: the formats, and the place they go to.

mod destination;
mod table;
mod text;
mod typed_file;

use std::io::IsTerminal;
use std::path::PathBuf;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use crate::args::Format;
use crate::failure::{Failure, Outcome};
use destination::Destination;

/// Writes the rows of one result, batch after batch.
trait RowWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError>;

    /// Ends the result: closes what the format left open.
    fn finish(&mut self) -> Result<(), ArrowError>;
}

/// Where results go, in which format.
pub struct Output {
    pub format: Format,
    destination: Destination,
    /// Whether the row count follows a table.
    count_rows: bool,
    /// The most that a writer may gather before it writes.
    buffer: usize,
    results: usize,
}

impl Output {
    /// Opens the place that results go to, so that one that cannot be written fails before any work is done.
    pub fn open(format: Option<Format>, path: Option<PathBuf>, count_rows: bool, buffer: usize) -> Outcome<Self> {
        let format = format.or_else(|| path.as_deref().and_then(format_of_name)).unwrap_or(Format::Table);
        if path.is_none() && is_binary(format) && std::io::stdout().is_terminal() {
            return Err(Failure::message(
                "parquet and arrow results are not for a terminal: give a file with --output, or pipe them on",
            ));
        }
        let destination = match path {
            Some(path) => Destination::file(path)?,
            None => Destination::standard_output(),
        };
        Ok(Self { format, destination, count_rows, buffer, results: 0 })
    }

    /// Begins a result.
    pub fn begin(&mut self, schema: &SchemaRef) -> Outcome<ResultWriter<'_>> {
        self.results += 1;
        if self.results > 1 && is_binary(self.format) {
            return Err(Failure::message(
                "a parquet or arrow output holds the result of one statement, and another came before this one: use \
                 COPY … TO 'FILE' for each",
            ));
        }
        let Self { format, destination, count_rows, buffer, .. } = self;
        let writer: Result<Box<dyn RowWriter + '_>, ArrowError> = match format {
            Format::Table => Ok(Box::new(table::TableWriter::new(destination, schema, *count_rows))),
            Format::Csv => Ok(Box::new(text::CsvWriter::new(destination, schema))),
            Format::Json => Ok(Box::new(text::JsonWriter::array(destination, schema))),
            Format::Ndjson => Ok(Box::new(text::JsonWriter::lines(destination, schema))),
            Format::Parquet => {
                typed_file::ParquetWriter::new(destination, schema, *buffer).map(|writer| Box::new(writer) as _)
            }
            Format::Arrow => typed_file::ArrowWriter::new(destination, schema).map(|writer| Box::new(writer) as _),
        };
        let writer = writer.map_err(|error| Failure::message(format!("cannot begin the output: {error}")))?;
        Ok(ResultWriter { writer })
    }

    /// Makes what has been written visible, and turns the error of a write into a failure.
    pub fn settle(&mut self, written: Result<(), ArrowError>) -> Outcome<()> {
        self.destination.settle(written)
    }

    /// Writes text as it is: help, the plan of EXPLAIN.
    pub fn text(&mut self, text: &str) -> Outcome<()> {
        let written = std::io::Write::write_all(&mut self.destination, text.as_bytes());
        self.destination.settle(written.map_err(ArrowError::from))
    }

    /// Whether rows scroll over the terminal that a progress bar would be drawn on.
    pub fn is_terminal(&self) -> bool {
        self.destination.is_terminal()
    }

    /// Puts the output file in place.
    pub fn finish(self) -> Outcome<()> {
        self.destination.finish()
    }
}

/// A result that is being written.
pub struct ResultWriter<'a> {
    writer: Box<dyn RowWriter + 'a>,
}

impl ResultWriter<'_> {
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        self.writer.write(batch)
    }

    pub fn finish(mut self) -> Result<(), ArrowError> {
        self.writer.finish()
    }
}

fn is_binary(format: Format) -> bool {
    matches!(format, Format::Parquet | Format::Arrow)
}

fn format_of_name(path: &std::path::Path) -> Option<Format> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "csv" => Some(Format::Csv),
        "json" => Some(Format::Json),
        "ndjson" | "jsonl" => Some(Format::Ndjson),
        "parquet" => Some(Format::Parquet),
        "arrow" | "feather" => Some(Format::Arrow),
        _ => None,
    }
}
