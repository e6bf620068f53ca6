//! Output of results: the formats and the destination.

mod destination;
mod table;
mod text;
mod typed_file;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::FileWriter;
use arrow::json::writer::{JsonArray, LineDelimited};
use arrow::record_batch::RecordBatch;

use crate::args::Format;
use crate::failure::{Failure, Outcome};
use destination::Destination;
use overspill::files::csv::CsvText;
use overspill_session::{KNOWN_NAMES, NamedFormat, distinct_names};
use serde::Serialize;

/// Writes the rows of one result batch by batch.
pub trait RowWriter {
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
        if path.is_none() && is_binary(format) && io::stdout().is_terminal() {
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

    pub fn begin(&mut self, schema: &SchemaRef) -> Outcome<Box<dyn RowWriter + '_>> {
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
            Format::Json => Ok(Box::new(text::JsonWriter::<_, JsonArray>::new(destination, schema, true))),
            Format::Ndjson => Ok(Box::new(text::JsonWriter::<_, LineDelimited>::new(destination, schema, false))),
            Format::Parquet => {
                typed_file::ParquetWriter::new(destination, schema, *buffer).map(|writer| Box::new(writer) as _)
            }
            Format::Arrow => FileWriter::try_new(destination, schema).map(|writer| Box::new(writer) as _),
        };
        writer.map_err(|error| Failure::message(format!("cannot begin the output: {error}")))
    }

    /// Flushes written data, and converts the error of a write to a failure.
    pub fn settle(&mut self, written: Result<(), ArrowError>) -> Outcome<()> {
        self.destination.settle(written)
    }

    /// Writes text unchanged: help, or the plan of EXPLAIN.
    pub fn text(&mut self, text: &str) -> Outcome<()> {
        let written = self.destination.write_all(text.as_bytes());
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

/// Writes a report of a tool to standard output, as JSON or as text. `what` is its noun.
pub fn print_report(what: &str, report: &(impl Display + Serialize), as_json: bool) -> Outcome<()> {
    let text = if as_json {
        let json = serde_json::to_string_pretty(report);
        json.map_err(|error| Failure::message(format!("{what} cannot be written as JSON: {error}")))? + "\n"
    } else {
        report.to_string()
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::file("write to", Path::new("standard output"), &error))
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
