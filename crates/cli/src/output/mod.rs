//! Output of results: the formats and the destination.

mod destination;
mod table;
mod text;
mod typed_file;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

use crate::args::Format;
use crate::failure::{Failure, Outcome};
use destination::Destination;
use overspill::files::csv::CsvText;
use overspill_session::{KNOWN_NAMES, NamedFormat, distinct_names};

/// Writes the rows of one result batch by batch.
trait RowWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError>;

    /// Ends the result and closes what the format left open.
    fn finish(&mut self) -> Result<(), ArrowError>;
}

/// The destination and format of results.
pub struct Output {
    pub format: Format,
    destination: Destination,
    csv: CsvText,
    /// Whether to print the row count after a table.
    count_rows: bool,
    /// The maximum number of bytes that a writer buffers.
    buffer: usize,
    results: usize,
}

impl Output {
    /// Opens the destination, so that an unwritable one fails before any work is done.
    pub fn open(format: Option<Format>, path: Option<PathBuf>, count_rows: bool, buffer: usize) -> Outcome<Self> {
        let named = path.as_deref().and_then(|path| NamedFormat::of(path.to_str()?));
        let format = match (format, &path) {
            (Some(format), _) => format,
            (None, None) => Format::Table,
            (None, Some(path)) => format_of_name(path, named.as_ref())?,
        };
        if is_binary(format)
            && let Some(path) = &path
            && !path.to_str().map_or("", NamedFormat::compression_of).is_empty()
        {
            return Err(Failure::message(format!(
                "{} would be compressed twice: parquet and arrow files are compressed within",
                path.display()
            )));
        }
        let delimiter = named.and_then(|named| named.delimiter);
        if path.is_none() && is_binary(format) && std::io::stdout().is_terminal() {
            return Err(Failure::message(
                "parquet and arrow results are not for a terminal: give a file with --output, or pipe them on",
            ));
        }
        let destination = match path {
            Some(path) => Destination::file(path)?,
            None => Destination::standard_output(),
        };
        let csv = CsvText::default().with_delimiter(delimiter.and_then(|delimiter| delimiter.try_into().ok()));
        Ok(Self { format, destination, csv, count_rows, buffer, results: 0 })
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
        if self.format != Format::Table {
            distinct_names(schema.fields().iter().map(|field| field.name())).map_err(Failure::message)?;
        }
        let Self { format, destination, csv, count_rows, buffer, .. } = self;
        let writer: Result<Box<dyn RowWriter + '_>, ArrowError> = match format {
            Format::Table => Ok(Box::new(table::TableWriter::new(destination, schema, *count_rows))),
            Format::Csv => Ok(Box::new(text::CsvWriter::new(destination, schema, csv.clone()))),
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

    /// Flushes written data, and converts the error of a write to a failure.
    pub fn settle(&mut self, written: Result<(), ArrowError>) -> Outcome<()> {
        self.destination.settle(written)
    }

    /// Writes text unchanged: help, or the plan of EXPLAIN.
    pub fn text(&mut self, text: &str) -> Outcome<()> {
        let written = std::io::Write::write_all(&mut self.destination, text.as_bytes());
        self.destination.settle(written.map_err(ArrowError::from))
    }

    /// Whether rows go to the terminal that would show a progress bar.
    pub fn is_terminal(&self) -> bool {
        self.destination.is_terminal()
    }

    /// Moves the output file to its final path.
    pub fn finish(self) -> Outcome<()> {
        self.destination.finish()
    }
}

/// A result being written.
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

/// The format of a file by its name; a table if the name gives none or says text.
fn format_of_name(path: &Path, named: Option<&NamedFormat>) -> Outcome<Format> {
    let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    match named.map(|named| named.known_as) {
        Some("csv") => Ok(Format::Csv),
        Some("parquet") => Ok(Format::Parquet),
        Some("arrow") => Ok(Format::Arrow),
        // Only names of line-based files say so; `.json` is one array.
        Some(_) if named.is_some_and(|named| named.suffix.to_ascii_lowercase().starts_with(".json.")) => {
            Ok(Format::Json)
        }
        Some(_) if extension.as_deref() == Some("json") => Ok(Format::Json),
        Some(_) => Ok(Format::Ndjson),
        None if matches!(extension.as_deref(), None | Some("txt")) => Ok(Format::Table),
        None => Err(Failure::message(format!(
            "the name of {} has no ending of a known format ({KNOWN_NAMES}, or .txt for a table): name one \
             with --format",
            path.display()
        ))),
    }
}
