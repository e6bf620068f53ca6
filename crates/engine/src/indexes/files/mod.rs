//! Indexes of Parquet files and Arrow files.
//!
//! An index is a file ([`StoredIndex`](overspill_index::StoredIndex)) in the folder `.overspill` beside the data, or in
//! `overspill.index_dir`. It numbers the rows of its files one file after the other, and has the state that each file was in when the
//! index was made. A scan may use it if all files that it reads are among them and still in that state, whatever table the scan is
//! of: a file by its name, a pattern, a folder, or a part of it.
//!
//! ```text
//!   orders/2025.parquet                 orders/.overspill/by_key.overspill-index
//!   orders/2026.parquet
//! ```
//!
//! [`FileRows`] finds rows, and is what makes of a scan another one that reads only those: each Parquet file with a row selection, so
//! that pages without any are neither read nor decoded, and of each Arrow file the batches with any.
//!
//! `CREATE INDEX … INCLUDE` copies columns into the index, in the order of keys. A scan that needs no others reads them in place of
//! the files ([`index_only`]): rows with near keys lie together there.

mod build;
mod catalog;
mod cost;
mod found;
mod included;
mod included_writer;
mod index_only;
mod layout;
mod numbered_keys;
mod place;
mod rows;
mod scan;
mod state;

pub(crate) use build::{BuiltIndex, build};
pub(crate) use catalog::{FileIndex, indexes_in, indexes_of};
pub(crate) use found::Sought;
pub(crate) use place::{folder_for, folders_of, path_in};
pub(crate) use rows::{FileRows, SelectedRows};
pub(crate) use scan::FileScan;
