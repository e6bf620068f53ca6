//! A scan with an index.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;

use crate::indexes::{IndexedRows, IndexedSource, ScanIndex, TableIndex};

/// A scan of a table, with an index over one of the columns that it reads.
#[derive(Debug)]
pub(crate) struct IndexedScan {
    pub index: Arc<TableIndex>,
    pub rows: Arc<IndexedRows>,
    /// The columns of the table that the scan returns.
    pub columns: Vec<usize>,
    /// Their schema.
    pub schema: SchemaRef,
}

impl IndexedScan {
    /// A scan with an index that `fits`, over the returned column of this number; `None` if there is none.
    pub fn of(scan: &DataSourceExec, column: usize, fits: impl Fn(&IndexedRows) -> bool) -> Option<Self> {
        let source: &IndexedSource = scan.data_source().downcast_ref()?;
        let columns = source.columns()?;
        source.indexes.iter().find_map(|ScanIndex { index, rows }| {
            let rows = rows.as_ref().ok().filter(|rows| rows.column() == columns[column] && fits(rows))?;
            let (index, rows, columns) = (Arc::clone(index), Arc::clone(rows), columns.clone());
            Some(Self { index, rows, columns, schema: scan.schema() })
        })
    }
}
