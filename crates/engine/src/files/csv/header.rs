//! The first record of a file, and the mapping of its fields to columns.

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::object_store::{ObjectMeta, ObjectStore};

use super::lexer::{Dialect, Fields, Lexer};
use super::types::Seen;
use crate::files::local::{PIECE, Source, fill, in_file, name, text_head};

/// The most bytes that the first record of a file may have.
const LONGEST: usize = 16 << 20;

/// The start of a file.
#[derive(Debug, Clone)]
pub struct Head {
    /// The fields of the first record.
    pub record: Vec<String>,
    /// The number of bytes of the byte order mark.
    pub mark: usize,
    /// A delimiter that gives all of the first records the same number of fields, two or more.
    other_delimiter: Option<u8>,
}

/// Collects the fields of the first record only.
#[derive(Default)]
pub struct First {
    field: Vec<u8>,
    record: Vec<Vec<u8>>,
    /// Whether there were empty lines.
    blank_lines: bool,
    /// Whether the record is complete.
    pub ended: bool,
}

impl Fields for First {
    fn text(&mut self, bytes: &[u8]) {
        self.field.extend_from_slice(bytes);
    }

    fn end_field(&mut self, _quoted: bool) {
        self.record.push(std::mem::take(&mut self.field));
    }

    fn end_record(&mut self, _line: u64) -> bool {
        self.ended = true;
        false
    }

    fn blank_line(&mut self, _line: u64) -> bool {
        self.blank_lines = true;
        true
    }
}

impl Head {
    /// Reads the first record of a file; none if the file has no record. If a file without a header has only empty lines,
    /// each is a record of one NULL.
    ///
    /// # Errors
    ///
    /// An unreadable file, a file that is not UTF-8, and a file with an endless first record are refused with the name of the
    /// file.
    pub async fn read(
        store: &dyn ObjectStore,
        object: &ObjectMeta,
        compression: FileCompressionType,
        dialect: Dialect,
        has_header: bool,
    ) -> Result<Option<Self>> {
        let mut reader = Source::open(store, object).await?.decompressed(compression)?;
        let (mut bytes, mark) = text_head(&mut reader, object)?;
        let other_delimiter = other_delimiter(&bytes, dialect);
        let mut lexer = Lexer::new(dialect, 0, u64::MAX);
        let mut first = First::default();
        let mut read = 0;
        while !bytes.is_empty() && !first.ended {
            read += bytes.len();
            if read > LONGEST {
                return exec_err!("{} has no end of its first line within 16 MiB", name(object));
            }
            lexer.read(&bytes, &mut first);
            if first.ended {
                break;
            }
            bytes.resize(PIECE, 0);
            let length = fill(&mut reader, &mut bytes).map_err(|error| in_file(object, error))?;
            bytes.truncate(length);
        }
        if !first.ended {
            if lexer.unclosed_quote().is_some() {
                return exec_err!("{} has a quote in its first record that is not closed", name(object));
            }
            lexer.finish(&mut first);
        }
        if first.record.is_empty() {
            if has_header || !first.blank_lines {
                return Ok(None);
            }
            first.record.push(vec![]);
        }
        let record =
            first.record.into_iter().map(String::from_utf8).collect::<Result<_, _>>().map_err(|_| {
                exec_datafusion_err!("{} is not UTF-8 text: convert it first, as with iconv", name(object))
            })?;
        Ok(Some(Self { record, mark, other_delimiter }))
    }

    /// The column names, made unique (a second `a` becomes `a_1`) and not empty.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::with_capacity(self.record.len());
        for (position, field) in self.record.iter().enumerate() {
            let wanted = if field.is_empty() { format!("column_{}", position + 1) } else { field.clone() };
            let taken = |name: &String| names.contains(name) || self.record[position + 1..].contains(name);
            let name = match names.contains(&wanted) {
                false => wanted,
                true => (1..).map(|n| format!("{wanted}_{n}")).find(|name| !taken(name)).unwrap_or(wanted),
            };
            names.push(name);
        }
        names
    }

    /// Refuses a file that probably has another delimiter than the given one.
    pub fn check_delimiter(&self, object: &ObjectMeta, dialect: Dialect) -> Result<()> {
        let (1, Some(other)) = (self.record.len(), self.other_delimiter) else { return Ok(()) };
        let other = char::from(other).escape_default();
        let read = char::from(dialect.delimiter).escape_default();
        exec_err!(
            "the first lines of {} have no '{read}' and look separated by '{other}': name the delimiter with CREATE \
             EXTERNAL TABLE t STORED AS CSV LOCATION '…' OPTIONS ('format.delimiter' '{other}'), or '{read}' if it is one \
             column",
            name(object)
        )
    }

    /// Refuses a header that looks like a row, given the values of the columns below it.
    pub fn check_header(&self, object: &ObjectMeta, columns: &[Seen]) -> Result<()> {
        let cells = || self.record.iter().map(|cell| Seen::of(cell));
        let text = Seen::of("x");
        let is_text = |seen: &Seen| *seen == text;
        let like_rows =
            cells().zip(columns).all(|(cell, column)| cell.is_like(*column) || (is_text(&cell) && column.is_nothing()));
        let some_value = cells().any(|cell| !is_text(&cell));
        if some_value && (like_rows || cells().all(|cell| !is_text(&cell))) {
            return exec_err!(
                "the first line of {} looks like a row and not like a header ({}). Say which it is with CREATE EXTERNAL \
                 TABLE t STORED AS CSV LOCATION '…' OPTIONS ('format.has_header' 'false'), or 'true'",
                name(object),
                shown(&self.record)
            );
        }
        Ok(())
    }
}

/// Counts the fields of records.
#[derive(Default)]
struct Widths {
    fields: usize,
    records: Vec<usize>,
}

impl Fields for Widths {
    fn text(&mut self, _bytes: &[u8]) {}

    fn end_field(&mut self, _quoted: bool) {
        self.fields += 1;
    }

    fn end_record(&mut self, _line: u64) -> bool {
        const ENOUGH: usize = 100;
        self.records.push(std::mem::take(&mut self.fields));
        self.records.len() < ENOUGH
    }

    fn blank_line(&mut self, _line: u64) -> bool {
        true
    }
}

/// A delimiter other than the given one that gives all records at the start of a text the same number of fields, two or more.
fn other_delimiter(bytes: &[u8], dialect: Dialect) -> Option<u8> {
    let others = [b';', b'\t', b'|', b','].into_iter().filter(|other| *other != dialect.delimiter);
    others.into_iter().find(|other| {
        let mut widths = Widths::default();
        let mut lexer = Lexer::new(Dialect { delimiter: *other, ..dialect }, 0, u64::MAX);
        lexer.read(bytes, &mut widths);
        if bytes.len() < PIECE {
            lexer.finish(&mut widths);
        }
        widths.records.first().is_some_and(|first| *first > 1 && widths.records.iter().all(|record| record == first))
    })
}

/// For each column of a table, the field of a record that holds it, or none if the file lacks the column.
///
/// # Errors
///
/// A file that lacks some of the columns is refused, unless `truncated` says that they are NULL. A header with none of the
/// column names may rename the columns if it has as many fields, and `renames` says that it is a header; otherwise it could
/// be a row.
pub fn fields_of(
    object: &ObjectMeta,
    header: &[String],
    columns: &[&str],
    truncated: bool,
    renames: bool,
) -> Result<Vec<Option<usize>>> {
    let exact = |column: &str| header.iter().position(|name| name == column);
    let folded = |column: &str| {
        let mut found = header.iter().enumerate().filter(|(_, name)| name.eq_ignore_ascii_case(column));
        match (found.next(), found.next()) {
            (Some((position, _)), None) => Some(position),
            _ => None,
        }
    };
    let fields: Vec<_> = columns.iter().map(|column| exact(column).or_else(|| folded(column))).collect();
    let found = fields.iter().flatten().count();
    if found == columns.len() || truncated {
        return Ok(fields);
    }
    if found == 0 && header.len() == columns.len() {
        if !renames {
            return exec_err!(
                "the first line of {} ({}) names none of the columns of the table. Say what it is with OPTIONS \
                 ('format.has_header' 'true'), if it names the columns in another way, or 'false', if it is a row",
                name(object),
                shown(header)
            );
        }
        return Ok((0..columns.len()).map(Some).collect());
    }
    let missing = columns.iter().zip(&fields).find(|(_, field)| field.is_none()).map_or("", |(column, _)| *column);
    exec_err!(
        "{} has no column '{missing}'; its header is {}. To read columns that a file does not have as NULL: CREATE \
         EXTERNAL TABLE t STORED AS CSV LOCATION '…' OPTIONS ('format.truncated_rows' 'true')",
        name(object),
        shown(header)
    )
}

/// Names as an error message shows them.
pub fn shown(names: &[String]) -> String {
    const MOST: usize = 12;
    let first = names.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > MOST { format!("{first}, … ({} in all)", names.len()) } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(record: &[&str]) -> Vec<String> {
        let record = record.iter().map(|name| name.to_string()).collect();
        Head { record, mark: 0, other_delimiter: None }.names()
    }

    #[test]
    fn a_text_is_separated_by_what_all_records_have_alike() {
        let dialect = Dialect { delimiter: b',', quote: b'"', escape: None, comment: None, terminator: None };
        for (text, expected) in [
            ("a;b\n1;2\n\n3;4", Some(b';')),
            ("\"a\"\t\"b;c\"\nd\te\n", Some(b'\t')),
            ("a|b", Some(b'|')),
            ("a;b\n1\n2\n", None),
            ("a;b\n1;2\n1;2;3\n", None),
            ("\"a;b\"\n\"c;d\"\n", None),
            ("a,b\n1,2\n", None),
            ("a\nb\n", None),
            ("", None),
        ] {
            assert_eq!(other_delimiter(text.as_bytes(), dialect), expected, "{text:?}");
        }
    }

    #[test]
    fn every_column_has_a_name_of_its_own() {
        assert_eq!(names(&["a", "a", "b"]), ["a", "a_1", "b"]);
        assert_eq!(names(&["a", "a", "a_1"]), ["a", "a_2", "a_1"]);
        assert_eq!(names(&["", "b", ""]), ["column_1", "b", "column_3"]);
    }
}
