//! Files as tables: `FROM 'orders.parquet'`, globs and folders.

mod format;
mod listing;
mod local_only;
mod partitions;
mod scan;
mod schema;
mod statement;
mod table;

pub use format::{KNOWN_NAMES, NamedFormat};
pub use local_only::LocalFilesOnly;
pub use statement::{read_names, refuse_equal_names};
pub use table::FileTables;
