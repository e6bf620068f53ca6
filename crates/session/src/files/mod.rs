//! Files as tables: `FROM 'orders.parquet'`, globs and folders.

mod external;
mod format;
mod listing;
mod local_only;
mod partitions;
mod scan;
mod schema;
mod selection;
mod statement;
mod table;

pub use external::ExternalTables;
pub use format::{KNOWN_NAMES, NamedFormat};
pub use local_only::LocalFilesOnly;
pub use statement::{distinct_names, read_names, refuse_equal_names, with_files_named};
pub use table::{FileTables, why_no_table};
