//! Files as tables: `FROM 'orders.parquet'`, globs and folders.

mod format;
mod local_only;
mod table;

pub use local_only::LocalFilesOnly;
pub use table::FileTables;
