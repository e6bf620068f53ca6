//! Scans that read of an indexed table only what a filter lets through.
//!
//! [`IndexScanExec`] is above the scan of a table. It knows which words of the index the filter above it allows, from its comparisons
//! of the indexed column with constants. When it runs, the index counts the rows with these words. If they are few, they are fetched,
//! else the table is scanned: in memory by the numbers of rows, in files by a scan with a selection of rows. The filter stays where it is, so that it may have more conditions, and words may stand for several
//! values.

mod exec;
mod indexed;
mod metrics;
mod predicate;
mod rows;
mod wanted;

pub use exec::IndexScanExec;
pub(crate) use indexed::{IndexedScan, MemoryRows, ScannedRows};
pub(crate) use metrics::IndexMetrics;
pub(crate) use predicate::words_of;
pub(crate) use rows::IndexRowsExec;
pub(crate) use wanted::{LookupKeys, Wanted};
