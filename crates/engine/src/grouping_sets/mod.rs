//! Aggregates with several grouping sets (`ROLLUP`, `CUBE`, `GROUPING SETS`).
//!
//! Such an aggregate puts out NULL for columns that are not in a set. DataFusion 55 believes all the same that a column which is
//! one value in the input (`WHERE y = 2020 GROUP BY ROLLUP(y, m)`) is one in the output, and that rows which come in the order of
//! a column go out in it. It then leaves out what sorts by the column, and gives groups several times.

mod exec;

pub(crate) use exec::GroupingSetsInputExec;
