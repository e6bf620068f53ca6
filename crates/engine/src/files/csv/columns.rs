//! Collects the fields of records into columns.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, NullBufferBuilder, RecordBatch, StringArray, new_null_array,
};
use arrow::buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::kernels::nullif::nullif;
use arrow::compute::{CastOptions, cast_with_options, regexp_is_match_scalar};
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use arrow::record_batch::RecordBatchOptions;
use datafusion::common::{Result, exec_datafusion_err, exec_err};

use super::lexer::Fields;
use super::types::first_lossy;

/// The most bytes of text in one column of a batch.
const COLUMN_BYTES: usize = 1 << 30;

/// An error in a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The first line of the record, from 0, counted from where reading began.
    pub line: u64,
    /// The error, as the end of a sentence that begins with the file and the line.
    pub text: String,
}

/// Maps the values of a file to columns.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The columns of a batch.
    pub schema: SchemaRef,
    /// For each column of a batch, the field of a record, or none if the file lacks the column.
    pub fields: Vec<Option<usize>>,
    /// The number of fields of a record.
    pub width: usize,
    /// Whether a record may have fewer fields.
    pub truncated: bool,
    /// Texts that are read as NULL, besides empty fields without quotes.
    pub null_regex: Option<String>,
}

/// The columns of a batch under construction.
pub struct Columns {
    layout: Arc<Layout>,
    batch_size: usize,
    /// For each field of a record, the column that receives it.
    targets: Vec<Option<usize>>,
    columns: Vec<Text>,
    /// The first line of each record.
    lines: Vec<u64>,
    /// The current field.
    field: usize,
    /// The length of the longest column's text.
    longest: usize,
    fault: Option<Fault>,
}

/// Text of one column.
#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    ends: Vec<i32>,
    valid: Vec<bool>,
    /// Whether an empty field in quotes is an empty text instead of NULL.
    keeps_empty: bool,
}

impl Columns {
    /// Collects batches of a fixed number of rows.
    pub fn new(layout: Arc<Layout>, batch_size: usize) -> Self {
        let mut targets = vec![None; layout.width];
        let mut columns = Vec::new();
        for (column, field) in layout.schema.fields().iter().enumerate() {
            columns.push(Text { keeps_empty: is_text(field.data_type()), ends: vec![0], ..Text::default() });
            if let Some(position) = layout.fields[column] {
                targets[position] = Some(column);
            }
        }
        Self { layout, batch_size, targets, columns, lines: vec![], field: 0, longest: 0, fault: None }
    }

    /// The error of the last record.
    pub fn fault(&mut self) -> Option<Fault> {
        self.fault.take()
    }

    /// Makes a batch of the collected records, if there are any.
    pub fn take(&mut self) -> Result<Option<RecordBatch>, Fault> {
        if self.lines.is_empty() {
            return Ok(None);
        }
        let lines = std::mem::take(&mut self.lines);
        self.longest = 0;
        let mut arrays = Vec::with_capacity(self.columns.len());
        for (column, field) in self.layout.schema.fields().iter().enumerate() {
            let text = &mut self.columns[column];
            let array = match self.layout.fields[column] {
                Some(_) => text.take().and_then(|text| self.layout.convert(text, field, &lines)),
                None => Ok(new_null_array(field.data_type(), lines.len())),
            };
            arrays.push(array.map_err(|(row, text)| Fault { line: lines[row], text })?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(lines.len()));
        RecordBatch::try_new_with_options(Arc::clone(&self.layout.schema), arrays, &options)
            .map(Some)
            .map_err(|error| Fault { line: lines[0], text: error.to_string() })
    }

    fn field_ends(&mut self, quoted: bool) {
        let Some(Some(column)) = self.targets.get(self.field) else { return };
        let text = &mut self.columns[*column];
        let start = text.ends.last().map_or(0, |end| *end as usize);
        text.valid.push(text.bytes.len() > start || (quoted && text.keeps_empty));
        // A single field of more than 2 GiB is refused together with its record.
        text.ends.push(i32::try_from(text.bytes.len()).unwrap_or(i32::MAX));
        self.longest = self.longest.max(text.bytes.len());
    }
}

impl Fields for Columns {
    fn text(&mut self, bytes: &[u8]) {
        if let Some(Some(column)) = self.targets.get(self.field) {
            self.columns[*column].bytes.extend_from_slice(bytes);
        }
    }

    fn end_field(&mut self, quoted: bool) {
        self.field_ends(quoted);
        self.field += 1;
    }

    fn end_record(&mut self, line: u64) -> bool {
        let width = self.layout.width;
        if self.field < width && self.layout.truncated {
            while self.field < width {
                self.end_field(false);
            }
        }
        if self.field != width {
            let has = self.field;
            let hint =
                if has < width { ": OPTIONS ('format.truncated_rows' 'true') reads missing ones as NULL" } else { "" };
            let (fields, columns) = (plural(has, "field"), plural(width, "column"));
            let text = format!("has {has} {fields}, and the file has {width} {columns}{hint}");
            self.fault = Some(Fault { line, text });
        } else if self.longest > i32::MAX as usize {
            self.fault = Some(Fault { line, text: "has a field of more than 2 GiB".to_string() });
        }
        self.field = 0;
        self.lines.push(line);
        self.fault.is_none() && self.lines.len() < self.batch_size && self.longest < COLUMN_BYTES
    }

    fn blank_line(&mut self, line: u64) -> bool {
        // An empty line is a record of one NULL if records have one field; otherwise it is skipped.
        if self.layout.width == 1 {
            self.end_field(false);
            self.end_record(line)
        } else {
            true
        }
    }
}

impl Text {
    /// The text as an array, or the first row that is not UTF-8.
    fn take(&mut self) -> Result<StringArray, (usize, String)> {
        let bytes = std::mem::take(&mut self.bytes);
        let ends = std::mem::replace(&mut self.ends, vec![0]);
        let valid = std::mem::take(&mut self.valid);
        self.bytes.reserve(bytes.len());
        let rows = |at: usize| ends.partition_point(|end| *end as usize <= at).saturating_sub(1);
        if let Err(error) = std::str::from_utf8(&bytes) {
            return Err((
                rows(error.valid_up_to()),
                "is not UTF-8 text: convert the file first, as with iconv".to_string(),
            ));
        }
        let mut nulls = NullBufferBuilder::new(valid.len());
        for valid in valid {
            nulls.append(valid);
        }
        let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
        // A quote may split a character of several bytes into two fields.
        StringArray::try_new(offsets, Buffer::from_vec(bytes), nulls.finish())
            .map_err(|error| (0, format!("or a later one is not UTF-8 text: {error}")))
    }
}

impl Layout {
    fn convert(&self, text: StringArray, field: &FieldRef, lines: &[u64]) -> Result<ArrayRef, (usize, String)> {
        let mut text: ArrayRef = Arc::new(text);
        if let Some(pattern) = &self.null_regex {
            text = without_matches(&text, pattern).map_err(|error| (0, error.to_string()))?;
        }
        let data_type = field.data_type();
        if data_type == &DataType::Utf8 {
            return Ok(text);
        }
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        let row = match cast_with_options(&text, data_type, &strict) {
            Ok(array) => match first_lossy(text.as_string(), &array) {
                None => return Ok(array),
                Some(row) => row,
            },
            Err(error) => {
                let lenient = CastOptions { safe: true, ..CastOptions::default() };
                cast_with_options(&text, data_type, &lenient)
                    .ok()
                    .and_then(|cast| (0..lines.len()).find(|row| text.is_valid(*row) && cast.is_null(*row)))
                    .ok_or_else(|| (0, error.to_string()))?
            }
        };
        let value = text.as_string::<i32>().value(row);
        let column = field.name();
        Err((
            row,
            format!(
                "has '{}' in the column '{column}', whose type is {data_type}. Types that are not given are those of the \
                 first rows: CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '…' OPTIONS \
                 ('format.schema_infer_max_rec' '1000000000') looks at all, or name them in CREATE EXTERNAL TABLE t \
                 ({column} VARCHAR, …)",
                shortened(value)
            ),
        ))
    }
}

fn without_matches(text: &ArrayRef, pattern: &str) -> Result<ArrayRef> {
    let Some(strings) = text.as_any().downcast_ref::<StringArray>() else {
        return exec_err!("the text of a CSV column is no text");
    };
    let matches: BooleanArray = regexp_is_match_scalar(strings, pattern, None)
        .map_err(|error| exec_datafusion_err!("format.null_regex '{pattern}' is not a regular expression: {error}"))?;
    Ok(nullif(text, &matches)?)
}

/// The start of a value, which may be long.
fn shortened(value: &str) -> String {
    match value.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_string(),
    }
}

fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => is_text(value),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => true,
        _ => false,
    }
}

/// A number with a noun in singular or plural.
pub fn plural(count: usize, noun: &str) -> String {
    if count == 1 { noun.to_string() } else { format!("{noun}s") }
}
