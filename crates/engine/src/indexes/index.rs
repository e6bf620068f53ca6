//! An index of a table.

use std::sync::Arc;

use overspill_index::IndexKind;
use parking_lot::Mutex;

use super::rows::IndexedRows;

/// An index of a table, by its name.
#[derive(Debug)]
pub(crate) struct TableIndex {
    pub name: String,
    /// The name of the indexed column.
    pub column: String,
    pub kind: IndexKind,
    pub(super) state: Mutex<Result<Arc<IndexedRows>, String>>,
}

impl TableIndex {
    pub fn new(name: String, column: String, kind: IndexKind, rows: IndexedRows) -> Self {
        Self { name, column, kind, state: Mutex::new(Ok(Arc::new(rows))) }
    }

    /// The indexed rows, or why they are no longer those of the table.
    pub fn rows(&self) -> Result<Arc<IndexedRows>, String> {
        self.state.lock().clone()
    }
}
