//! What an index file says of itself.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::IndexKind;

/// The column that an index is over, and the files with its rows. For each file it has the state that the file was in when the
/// index was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredDescription {
    /// The name of the index.
    pub name: String,
    /// The name of the indexed column.
    pub column: String,
    /// The type of the column, as its words have been made.
    pub data_type: String,
    /// The kind of index over the first keys of blocks.
    pub kind: IndexKind,
    /// Rows with a null in the column, which are not in the index.
    pub nulls: u64,
    /// The files, in the order in which their rows are numbered.
    pub files: Vec<IndexedFile>,
    /// The columns that the index has besides the indexed one.
    pub included: Vec<IncludedColumn>,
}

/// A column that an index has besides the indexed one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncludedColumn {
    /// The name.
    pub name: String,
    /// The type.
    pub data_type: String,
}

/// A state of a file that has rows of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexedFile {
    /// The path, absolute or relative to a folder that is agreed upon.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// The number of the file in its file system.
    pub inode: u64,
    /// When the content was changed, in nanoseconds since 1970.
    pub modified: i128,
    /// When the file was changed in any way, in nanoseconds since 1970. No program can set it.
    pub changed: i128,
    /// A hash of its footer.
    pub footer: u64,
    /// Number of rows.
    pub rows: u64,
}

impl StoredDescription {
    /// The number of rows of the table, with nulls.
    pub fn table_rows(&self) -> u64 {
        self.files.iter().fold(0, |rows, file| rows.saturating_add(file.rows))
    }
}
