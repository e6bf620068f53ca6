//! Infers the columns of CSV files and their types from the first rows of each file.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::config::CsvOptions;
use datafusion::common::{Result, exec_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::object_store::{ObjectMeta, ObjectStore};

use super::columns::{Layout, plural};
use super::header::{Head, shown};
use super::lexer::Dialect;
use super::reader::{Batches, Part};
use super::types::Seen;
use crate::files::local::{Source, in_file, name};

/// The number of rows that types are inferred from, for all files together, unless the options say how many.
const ROWS: usize = 20_480;

/// The fewest rows that are read from each file for that.
const ROWS_OF_EACH: usize = 100;

/// Columns and the forms of their values.
struct Table {
    /// The file that has these columns.
    object: ObjectMeta,
    columns: Vec<(String, Seen)>,
}

/// The common schema of the files.
///
/// # Errors
///
/// Files with different columns are refused, unless the options allow truncated rows. A file that is not CSV of this dialect
/// is refused with the name of the file.
pub async fn infer_schema(
    store: &dyn ObjectStore,
    objects: &[ObjectMeta],
    options: &CsvOptions,
    has_header: bool,
    delimiter_is_given: bool,
) -> Result<Schema> {
    let mut rows = options.schema_infer_max_rec.unwrap_or(ROWS);
    let all_text = rows == 0;
    let truncated = options.truncated_rows.unwrap_or(false);
    let mut table: Option<Table> = None;
    for object in objects {
        let Some((columns, read)) = look_at(store, object, options, has_header, delimiter_is_given, rows).await? else {
            continue;
        };
        rows = rows.saturating_sub(read).max(if all_text { 0 } else { ROWS_OF_EACH });
        match &mut table {
            None => table = Some(Table { object: object.clone(), columns }),
            Some(table) if has_header => table.add_by_name(object, columns, truncated)?,
            Some(table) => table.add_in_order(object, columns, truncated)?,
        }
    }
    let columns = table.map(|table| table.columns).unwrap_or_default();
    let fields = columns.into_iter().map(|(name, seen)| {
        let data_type = if all_text { DataType::Utf8 } else { seen.data_type() };
        Field::new(name, data_type, true)
    });
    Ok(Schema::new(fields.collect::<Vec<_>>()))
}

/// The columns of one file, and the number of rows read; none if the file has no record.
async fn look_at(
    store: &dyn ObjectStore,
    object: &ObjectMeta,
    options: &CsvOptions,
    has_header: bool,
    delimiter_is_given: bool,
    rows: usize,
) -> Result<Option<(Vec<(String, Seen)>, usize)>> {
    let dialect = Dialect::of(options);
    let compression = FileCompressionType::from(options.compression);
    let Some(head) = Head::read(store, object, compression, dialect, has_header).await? else { return Ok(None) };
    // A delimiter that the user specified is not questioned.
    if !delimiter_is_given {
        head.check_delimiter(object, dialect)?;
    }
    let names = match has_header {
        true => head.names(),
        false => (1..=head.record.len()).map(|position| format!("column_{position}")).collect(),
    };
    let mut seen = vec![Seen::default(); names.len()];
    let mut read = 0;
    if rows > 0 {
        let fields = names.iter().map(|name| Field::new(name, DataType::Utf8, true));
        let layout = Layout {
            schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
            fields: (0..names.len()).map(Some).collect(),
            width: names.len(),
            truncated: options.truncated_rows.unwrap_or(false),
            null_regex: options.null_regex.clone(),
        };
        let mut reader = Source::open(store, object).await?.decompressed(compression)?;
        let mut mark = vec![0; head.mark];
        reader.read_exact(&mut mark).map_err(|error| in_file(object, error))?;
        let part = Part { object: object.clone(), start: head.mark as u64, end: u64::MAX, has_header };
        for batch in Batches::new(reader, part, dialect, Arc::new(layout), rows.min(1024)) {
            let batch = batch?;
            for (seen, column) in seen.iter_mut().zip(batch.columns()) {
                seen.add(column.as_string::<i32>());
            }
            read += batch.num_rows();
            if read >= rows {
                break;
            }
        }
    }
    // A `has_header` that the user specified is not questioned.
    if has_header && options.has_header.is_none() && read > 0 {
        head.check_header(object, &seen)?;
    }
    Ok(Some((names.into_iter().zip(seen).collect(), read)))
}

impl Table {
    fn add_by_name(&mut self, object: &ObjectMeta, columns: Vec<(String, Seen)>, truncated: bool) -> Result<()> {
        let position = |known: &[(String, Seen)], name: &str| {
            let exact = known.iter().position(|(known, _)| known == name);
            exact.or_else(|| known.iter().position(|(known, _)| known.eq_ignore_ascii_case(name)))
        };
        let missing = self.columns.iter().find(|(name, _)| position(&columns, name).is_none());
        let extra = columns.iter().find(|(name, _)| position(&self.columns, name).is_none());
        let (first, second) = (name(&self.object), name(object));
        let none = columns.iter().all(|(name, _)| position(&self.columns, name).is_none());
        if none && !columns.is_empty() {
            let header: Vec<_> = columns.into_iter().map(|(name, _)| name).collect();
            return exec_err!(
                "{second} has no column of {first}: its first line is {}. If the files have no header, say so with \
                 CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '…' OPTIONS ('format.has_header' 'false')",
                shown(&header)
            );
        }
        if !truncated && let Some((column, _)) = missing.or(extra) {
            let (has, lacks) = if missing.is_some() { (first, second) } else { (second, first) };
            return exec_err!(
                "{has} has a column '{column}' and {lacks} has none. To read columns that a file does not have as \
                 NULL: CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '…' OPTIONS ('format.truncated_rows' 'true')"
            );
        }
        for (name, seen) in columns {
            match position(&self.columns, &name) {
                Some(known) => self.columns[known].1 = self.columns[known].1.and(seen),
                None => self.columns.push((name, seen)),
            }
        }
        Ok(())
    }

    fn add_in_order(&mut self, object: &ObjectMeta, columns: Vec<(String, Seen)>, truncated: bool) -> Result<()> {
        let (known, has) = (self.columns.len(), columns.len());
        if known != has && !truncated {
            return exec_err!(
                "{} has {known} {} and {} has {has}. To fill missing ones with NULL: OPTIONS ('format.truncated_rows' \
                 'true')",
                name(&self.object),
                plural(known, "column"),
                name(object)
            );
        }
        for (position, (name, seen)) in columns.into_iter().enumerate() {
            match self.columns.get_mut(position) {
                Some((_, known)) => *known = known.and(seen),
                None => self.columns.push((name, seen)),
            }
        }
        Ok(())
    }
}
