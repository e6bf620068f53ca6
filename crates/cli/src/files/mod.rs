//! Files as tables: `FROM 'orders.parquet'`, globs and folders.

mod format;
mod listing;
mod local_only;
mod partitions;
mod scan;
mod schema;
mod table;

pub use local_only::LocalFilesOnly;
pub use table::FileTables;
