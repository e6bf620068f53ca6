//! Runs `SHOW INDEXES`.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::Result;

use super::ReservedMemTable;
use super::tables::{ListedIndex, Tables};

/// A line of the list.
struct Line {
    name: String,
    table: String,
    column: String,
    /// The columns that the index includes.
    included: String,
    kind: String,
    rows: Option<u64>,
    bytes: Option<u64>,
    /// Why the index is stale; `None` if it is not.
    stale: Option<String>,
}

/// A line for each index.
pub(super) fn listed(tables: &Tables) -> Result<RecordBatch> {
    let mut lines = in_memory(tables);
    lines.extend(tables.file_indexes()?.into_iter().map(in_file));
    let text =
        |value: fn(&Line) -> String| -> ArrayRef { Arc::new(StringArray::from_iter_values(lines.iter().map(value))) };
    let number =
        |value: fn(&Line) -> Option<u64>| -> ArrayRef { Arc::new(lines.iter().map(value).collect::<UInt64Array>()) };
    let columns: [(&str, ArrayRef); 8] = [
        ("name", text(|line| line.name.clone())),
        ("table", text(|line| line.table.clone())),
        ("column", text(|line| line.column.clone())),
        ("included", text(|line| line.included.clone())),
        ("kind", text(|line| line.kind.clone())),
        ("rows", number(|line| line.rows)),
        ("bytes", number(|line| line.bytes)),
        ("state", text(|line| line.stale.as_ref().map_or_else(|| "fresh".to_owned(), |why| format!("stale: {why}")))),
    ];
    let fields = columns
        .iter()
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), *column.data_type() == DataType::UInt64));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    Ok(RecordBatch::try_new(schema, columns.into_iter().map(|(_, column)| column).collect())?)
}

fn in_memory(tables: &Tables) -> Vec<Line> {
    let memory =
        tables.memory.iter().filter_map(|(name, table)| Some((name, table.downcast_ref::<ReservedMemTable>()?)));
    let indexes = memory.flat_map(|(name, table)| table.indexes().all().into_iter().map(move |index| (name, index)));
    let lines = indexes.map(|(table, index)| {
        let (rows, bytes, stale) = match index.rows() {
            Ok(rows) => (Some(rows.rows() as u64), Some(rows.bytes() as u64), None),
            Err(why) => (None, None, Some(why)),
        };
        let (table, column) = (table.table().to_owned(), index.column.clone());
        let included = String::new();
        Line { name: index.name.clone(), table, column, included, kind: index.kind.to_string(), rows, bytes, stale }
    });
    lines.collect()
}

fn in_file(listed: ListedIndex<'_>) -> Line {
    let ListedIndex { table, path, index } = listed;
    let bytes = std::fs::metadata(&path).ok().map(|metadata| metadata.len());
    // Of a table that the session does not know, the file tells which.
    let name = table.map_or_else(|| path.display().to_string(), |table| table.name.table().to_owned());
    match index {
        Ok(index) => {
            let of_table = table.and_then(|table| index.staleness(&table.files).ok().flatten());
            let stale = of_table.or_else(|| index.change());
            let description = index.description;
            let rows = description.table_rows();
            let included: Vec<_> = description.included.into_iter().map(|column| column.name).collect();
            Line {
                included: included.join(", "),
                rows: Some(rows),
                kind: description.kind.to_string(),
                name: description.name,
                table: name,
                column: description.column,
                bytes,
                stale,
            }
        }
        Err(why) => {
            let unknown = String::new;
            Line {
                name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
                table: name,
                column: unknown(),
                included: unknown(),
                kind: unknown(),
                rows: None,
                bytes,
                stale: Some(why),
            }
        }
    }
}
