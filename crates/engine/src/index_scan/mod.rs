//! Scans that read of an indexed table only what a filter lets through.
//!
//! [`IndexScanExec`] is above the scan of a table. It knows which words of the index the filter above it allows, from its comparisons
//! of the indexed column with constants. When it runs, the index counts the rows with these words. If they are few, the node reads
//! only them: in memory by their numbers, in files by a scan with a selection of rows. Else it scans the table. The filter stays above
//! it. So the filter may have more conditions, and a word may stand for several values.

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
pub(crate) use wanted::{LookupKeys, RowNumbers, Wanted};
