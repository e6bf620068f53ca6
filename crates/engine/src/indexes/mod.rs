//! Indexes of tables in memory and of files: what `CREATE INDEX` makes.
//!
//! A table in memory has a list of them ([`TableIndexes`]). An index is over the rows that the table had when it was built, or that an `INSERT`
//! has added since; other changes make it stale. A scan of the table carries the indexes that fit its rows ([`MemoryTableSource`]), so
//! that a join can look rows up in place of scanning them ([`index_lookup`](crate::index_lookup)). The scan is kept until a change.

use datafusion::common::DataFusionError;

mod cancel;
pub(crate) mod files;
mod index;
mod rows;
mod run;
mod source;
mod statement;
mod table;

pub(crate) use cancel::CancelOnDrop;
pub(crate) use index::TableIndex;
pub(crate) use rows::{IndexedRows, Scratch};
pub(crate) use source::{MemoryTableSource, ScanIndex};
pub(crate) use statement::{CreateIndex, DropIndex, IndexAction, IndexStatement, statement_of};
pub(crate) use table::{ScanKey, TableIndexes};

/// The error of an index as one of DataFusion's.
fn failed(error: overspill_machine::Error) -> DataFusionError {
    DataFusionError::Execution(error.to_string())
}
