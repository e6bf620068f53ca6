//! Aggregates with several grouping sets (`ROLLUP`, `CUBE`, `GROUPING SETS`).
//!
//! For each grouping set, the aggregate returns NULL in the columns outside the set. DataFusion 55 ignores that. In `WHERE y
//! = 2020 GROUP BY ROLLUP(y, m)` it takes `y` for constant in the output, as it is in the input. It does the same with the
//! order of the input. So it drops sorts by such columns, and returns a group more than once.

mod exec;

pub use exec::GroupingSetsInputExec;
