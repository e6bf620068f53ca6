//! `DELETE`, `UPDATE` and `TRUNCATE` of tables in memory, as queries over numbered rows.
//!
//! The rule `row_changes` turns a statement into a query that returns the numbers of the affected rows, and for an `UPDATE`
//! their new values. The query is planned and joined like any other, so its filter may contain subqueries. A sink reads its
//! result and replaces the table's rows, all at once or not at all:
//!
//! ```text
//!   DELETE FROM t WHERE k IN (SELECT x FROM s)          UPDATE t SET v = v + 1 WHERE k > 7
//!
//!   RowChangeSink (delete)                              RowChangeSink (update v)
//!     Projection: row number                              Projection: v + 1, row number
//!       Filter: k IN (SELECT x FROM s)                      Filter: k > 7
//!         NumberedRows of t                                   NumberedRows of t
//! ```
//!
//! The numbers are those of the rows when the statement was planned. If another statement changes the table before the sink
//! does, the sink returns an error, as the numbers then mean other rows.

mod numbered;
mod sink;
mod table;

pub(crate) use numbered::{NumberedRows, ROW_NUMBER};
pub(crate) use sink::{ChangedRows, RowChange};
pub(crate) use table::ChangeableTable;
