//! A scan with an index.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use overspill_index::IndexKind;

use crate::indexes::files::{FileRows, FileScan, indexes_of};
use crate::indexes::{IndexedRows, MemoryTableSource, ScanIndex};

/// A scan of a table, with an index over one of the columns that it reads.
#[derive(Debug)]
pub(crate) struct IndexedScan {
    /// The name of the index.
    pub name: String,
    /// The name of the indexed column.
    pub column: String,
    pub kind: IndexKind,
    pub rows: ScannedRows,
}

/// The indexed rows.
#[derive(Debug)]
pub(crate) enum ScannedRows {
    Memory(Arc<MemoryRows>),
    Files(FileRows),
    /// They are not those of the scan any more, for this reason.
    Stale(String),
}

/// Rows of a table in memory.
#[derive(Debug)]
pub(crate) struct MemoryRows {
    pub rows: Arc<IndexedRows>,
    /// The columns of the table that the scan returns.
    pub columns: Vec<usize>,
    /// Their schema.
    pub schema: SchemaRef,
}

impl IndexedScan {
    /// A scan with an index over the returned column of this number, one that is not stale if there is any. `None` if there is
    /// none. `with_nulls` is whether rows with a null in the column must be found as well, which are in no index.
    pub fn of(scan: &DataSourceExec, column: usize, with_nulls: bool, index_dir: &str) -> Option<Self> {
        if let Some(source) = scan.data_source().downcast_ref::<MemoryTableSource>() {
            return Self::in_memory(scan, source, column, with_nulls);
        }
        let files = FileScan::of(scan)?;
        Self::in_files(scan, &files, files.column(column)?.0, with_nulls, index_dir)
    }

    fn in_memory(scan: &DataSourceExec, source: &MemoryTableSource, column: usize, with_nulls: bool) -> Option<Self> {
        let columns = source.columns()?;
        source.indexes.iter().find_map(|ScanIndex { index, rows }| {
            let fits = |rows: &IndexedRows| rows.column() == columns[column] && !(with_nulls && rows.nulls() > 0);
            let rows = Arc::clone(rows.as_ref().ok().filter(|rows| fits(rows))?);
            let rows =
                ScannedRows::Memory(Arc::new(MemoryRows { rows, columns: columns.clone(), schema: scan.schema() }));
            Some(Self { name: index.name.clone(), column: index.column.clone(), kind: index.kind, rows })
        })
    }

    /// A scan of files with an index over the column of the table with this name: if there are several, one that has all that is read.
    pub fn in_files(
        scan: &DataSourceExec,
        scanned: &FileScan<'_>,
        column: &str,
        with_nulls: bool,
        index_dir: &str,
    ) -> Option<Self> {
        let (_, data_type) = scanned.table_column(column)?;
        let (files, mut fresh, mut stale) = (scanned.files(), None, None);
        for index in indexes_of(scanned, index_dir).into_iter().flatten() {
            let description = &index.description;
            if description.column != column || (with_nulls && description.nulls > 0) {
                continue;
            }
            let Ok(staleness) = index.staleness(&files) else { continue };
            let another = format!("its keys are of type {}, and the column of type {data_type}", description.data_type);
            let why = staleness.or((!index.fits(data_type)).then_some(another));
            let (name, column, kind) = (description.name.clone(), description.column.clone(), description.kind);
            let Some(why) = why else {
                let rows = FileRows::new(index, scan, scanned);
                let is_index_only = rows.is_index_only;
                let found = Self { name, column, kind, rows: ScannedRows::Files(rows) };
                if is_index_only {
                    return Some(found);
                }
                fresh.get_or_insert(found);
                continue;
            };
            stale.get_or_insert(Self { name, column, kind, rows: ScannedRows::Stale(why) });
        }
        fresh.or(stale)
    }

    /// Has the rows read from files, and not from the columns that the index includes.
    pub fn read_files(&mut self) {
        if let ScannedRows::Files(rows) = &mut self.rows {
            rows.is_index_only = false;
        }
    }

    /// What EXPLAIN shows of the index.
    pub fn explained(&self) -> String {
        let Self { name, column, kind, rows } = self;
        match rows {
            ScannedRows::Stale(why) => format!("index={name}, column={column}, stale: {why}"),
            ScannedRows::Files(rows) if rows.is_index_only => {
                format!("index={name}, column={column}, kind={kind}, index_only=true")
            }
            _ => format!("index={name}, column={column}, kind={kind}"),
        }
    }
}
