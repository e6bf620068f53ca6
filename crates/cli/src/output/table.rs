//! Aligned columns, for people.

use std::io::Write;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use unicode_width::UnicodeWidthStr;

use super::RowWriter;

/// Rows buffered to find the widths of the columns. Wider values in later rows widen the columns from there on.
const CHUNK_ROWS: usize = 1000;

/// The maximum memory for this buffer. A row of thousands of columns takes much of it.
const CHUNK_BYTES: usize = 8 << 20;

/// Bytes of a cell beside its text.
const CELL_BYTES: usize = 40;

pub struct TableWriter<W: Write> {
    destination: W,
    columns: Vec<Column>,
    /// Cells of the rows that have not been written yet, row by row.
    held: Vec<String>,
    held_bytes: usize,
    has_header: bool,
    rows: usize,
    count_rows: bool,
}

struct Column {
    name: String,
    width: usize,
    align_right: bool,
}

impl<W: Write> TableWriter<W> {
    pub fn new(destination: W, schema: &SchemaRef, count_rows: bool) -> Self {
        let columns = schema.fields().iter().map(|field| {
            let name = printable(field.name().clone());
            Column { width: name.width(), name, align_right: field.data_type().is_numeric() }
        });
        Self {
            destination,
            columns: columns.collect(),
            held: Vec::new(),
            held_bytes: 0,
            has_header: false,
            rows: 0,
            count_rows,
        }
    }

    fn release(&mut self) -> Result<(), ArrowError> {
        let count = self.columns.len();
        for row in self.held.chunks(count.max(1)) {
            for (column, cell) in self.columns.iter_mut().zip(row) {
                column.width = column.width.max(cell.width());
            }
        }
        if !self.has_header {
            self.has_header = true;
            let names: Vec<_> = self.columns.iter().map(|column| column.name.clone()).collect();
            write_row(&mut self.destination, &self.columns, &names)?;
            let rule: Vec<_> = self.columns.iter().map(|column| "-".repeat(column.width + 2)).collect();
            writeln!(self.destination, "{}", rule.join("+"))?;
        }
        let held = std::mem::take(&mut self.held);
        self.held_bytes = 0;
        for row in held.chunks(count.max(1)) {
            write_row(&mut self.destination, &self.columns, row)?;
        }
        Ok(())
    }
}

impl<W: Write> RowWriter for TableWriter<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let options = FormatOptions::default().with_null("NULL").with_display_error(true);
        let formatters = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column.as_ref(), &options))
            .collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            for formatter in &formatters {
                let cell = printable(formatter.value(row).to_string());
                self.held_bytes += cell.len() + CELL_BYTES;
                self.held.push(cell);
            }
            if self.held.len() >= CHUNK_ROWS * self.columns.len() || self.held_bytes >= CHUNK_BYTES {
                self.release()?;
            }
        }
        self.rows += batch.num_rows();
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ArrowError> {
        self.release()?;
        if self.count_rows {
            let noun = if self.rows == 1 { "row" } else { "rows" };
            writeln!(self.destination, "({} {noun})", self.rows)?;
        }
        Ok(())
    }
}

fn write_row<W: Write>(destination: &mut W, columns: &[Column], cells: &[String]) -> std::io::Result<()> {
    let last = columns.len().saturating_sub(1);
    for (position, (column, cell)) in columns.iter().zip(cells).enumerate() {
        let padding = column.width.saturating_sub(cell.width());
        let separator = if position == 0 { " " } else { " | " };
        match (column.align_right, position == last) {
            (true, _) => write!(destination, "{separator}{:padding$}{cell}", "")?,
            // No trailing blanks, which would disturb copied text.
            (false, true) => write!(destination, "{separator}{cell}")?,
            (false, false) => write!(destination, "{separator}{cell}{:padding$}", "")?,
        }
    }
    writeln!(destination)
}

/// Escapes control characters, so that a cell stays on its line and does not control the terminal.
fn printable(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if character.is_control() {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    fn print(batches: &[RecordBatch]) -> String {
        let mut text = Vec::new();
        let mut writer = TableWriter::new(&mut text, batches[0].schema_ref(), true);
        batches.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.finish().unwrap();
        String::from_utf8(text).unwrap()
    }

    fn batch(keys: Vec<Option<i64>>, names: Vec<&str>) -> RecordBatch {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys));
        let names: ArrayRef = Arc::new(StringArray::from(names));
        RecordBatch::try_from_iter_with_nullable([("key", keys, true), ("name", names, true)]).unwrap()
    }

    #[test]
    fn numbers_stand_right_and_text_left() {
        let table = print(&[batch(vec![Some(1), None], vec!["one", "two\nlines"])]);
        assert_eq!(table, "  key | name\n------+------------\n    1 | one\n NULL | two\\nlines\n(2 rows)\n");
    }

    #[test]
    fn wide_characters_take_two_places() {
        let table = print(&[batch(vec![Some(1)], vec!["表"])]);
        assert_eq!(table, " key | name\n-----+------\n   1 | 表\n(1 row)\n");
    }

    #[test]
    fn a_long_result_is_written_in_chunks_with_one_header() {
        let rows = 2 * CHUNK_ROWS + 5;
        let table = print(&[batch((0..rows as i64).map(Some).collect(), vec!["x"; rows])]);
        assert_eq!(table.matches("key").count(), 1);
        assert_eq!(table.lines().count(), rows + 3);
    }

    #[test]
    fn a_result_without_rows_shows_its_columns() {
        assert_eq!(print(&[batch(vec![], vec![])]), " key | name\n-----+------\n(0 rows)\n");
    }
}
