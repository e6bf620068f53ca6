//! Writes batches as CSV text.
//!
//! NULL is an empty field and an empty text is `""`, so that reading gives back what was written.

use std::fmt::Write;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Schema};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::config::CsvOptions;
use datafusion::common::parsers::CsvQuoteStyle;
use datafusion::common::{Result, plan_err};

/// Turns batches into CSV text.
#[derive(Debug, Clone)]
pub struct CsvText {
    options: CsvOptions,
}

impl Default for CsvText {
    fn default() -> Self {
        Self::of(&CsvOptions::default())
    }
}

impl CsvText {
    /// A writer with DataFusion's options.
    pub fn of(options: &CsvOptions) -> Self {
        Self { options: options.clone() }
    }

    /// The same writer with another delimiter, if one is given.
    #[must_use]
    pub fn with_delimiter(mut self, delimiter: Option<u8>) -> Self {
        self.options.delimiter = delimiter.unwrap_or(self.options.delimiter);
        self
    }

    /// Whether these options are supported: quotes are doubled, and used only where needed.
    pub fn covers(options: &CsvOptions) -> bool {
        options.quote_style == CsvQuoteStyle::Necessary
            && options.escape.is_none()
            && options.double_quote != Some(false)
            && options.terminator.is_none()
            && options.ignore_leading_whitespace != Some(true)
            && options.ignore_trailing_whitespace != Some(true)
    }

    /// Refuses options that would make NULL unreadable as a field of its own. It cannot be quoted, as a quoted field is a
    /// text.
    ///
    /// # Errors
    ///
    /// The text for NULL must not contain anything that ends a field or begins a comment.
    pub fn check(options: &CsvOptions) -> Result<()> {
        let Some(null) = &options.null_value else { return Ok(()) };
        let ends_field = |byte: u8| {
            byte == options.delimiter
                || byte == options.quote
                || matches!(byte, b'\n' | b'\r')
                || options.terminator == Some(byte)
        };
        if null.bytes().any(ends_field) || (options.comment.is_some() && null.bytes().next() == options.comment) {
            return plan_err!(
                "CSV files cannot be written with format.null_value '{}': it holds the delimiter, a quote or the end of a \
                 line, or begins as a comment",
                null.escape_default()
            );
        }
        Ok(())
    }

    /// Appends the column names as a line.
    pub fn header(&self, schema: &Schema, text: &mut Vec<u8>) {
        for (column, field) in schema.fields().iter().enumerate() {
            self.separate(column, text);
            self.field(field.name(), text);
        }
        text.push(b'\n');
    }

    /// Appends the rows of a batch, one line each unless values contain line breaks.
    ///
    /// # Errors
    ///
    /// Returns an error if a value has no text form.
    pub fn rows(&self, batch: &RecordBatch, text: &mut Vec<u8>) -> Result<(), ArrowError> {
        let options = FormatOptions::default()
            .with_date_format(self.options.date_format.as_deref())
            .with_datetime_format(self.options.datetime_format.as_deref())
            .with_timestamp_format(self.options.timestamp_format.as_deref())
            .with_timestamp_tz_format(self.options.timestamp_tz_format.as_deref())
            .with_time_format(self.options.time_format.as_deref());
        let columns = batch
            .columns()
            .iter()
            .map(|column| Ok((column, ArrayFormatter::try_new(column.as_ref(), &options)?)))
            .collect::<Result<Vec<_>, ArrowError>>()?;
        let mut value = String::new();
        for row in 0..batch.num_rows() {
            for (position, (column, formatter)) in columns.iter().enumerate() {
                self.separate(position, text);
                if column.is_null(row) || *column.data_type() == DataType::Null {
                    text.extend_from_slice(self.null().as_bytes());
                } else if let Some(strings) = column.as_string_opt::<i32>() {
                    self.field(strings.value(row), text);
                } else if let Some(strings) = column.as_string_view_opt() {
                    self.field(strings.value(row), text);
                } else {
                    value.clear();
                    write!(value, "{}", formatter.value(row))
                        .map_err(|_| ArrowError::CsvError("a value has no text".to_string()))?;
                    self.field(&value, text);
                }
            }
            text.push(b'\n');
        }
        Ok(())
    }

    fn null(&self) -> &str {
        self.options.null_value.as_deref().unwrap_or_default()
    }

    fn separate(&self, position: usize, text: &mut Vec<u8>) {
        if position > 0 {
            text.push(self.options.delimiter);
        }
    }

    fn field(&self, value: &str, text: &mut Vec<u8>) {
        let CsvOptions { delimiter, quote, comment, .. } = self.options;
        let special = |byte: u8| byte == delimiter || byte == quote || byte == b'\n' || byte == b'\r';
        // At the start of a line, or of a file, these are not part of a value.
        let begins_otherwise = (comment.is_some() && value.bytes().next() == comment) || value.starts_with('\u{feff}');
        if !value.is_empty() && value != self.null() && !begins_otherwise && !value.bytes().any(special) {
            text.extend_from_slice(value.as_bytes());
            return;
        }
        text.push(quote);
        for byte in value.bytes() {
            if byte == quote {
                text.push(byte);
            }
            text.push(byte);
        }
        text.push(quote);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringViewArray};

    use super::*;

    #[test]
    fn null_and_empty_text_differ() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let texts: ArrayRef = Arc::new(StringViewArray::from(vec![Some(""), None]));
        let batch = RecordBatch::try_from_iter([("n", numbers), ("a \"name\"", texts)]).unwrap();
        let mut text = Vec::new();
        CsvText::default().header(&batch.schema(), &mut text);
        CsvText::default().rows(&batch, &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "n,\"a \"\"name\"\"\"\n1,\"\"\n,\n");
    }
}
