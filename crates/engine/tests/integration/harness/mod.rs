//! What the tests share: sessions with and without Overspill, answers that compare, plans that report.

pub mod duckdb;
pub mod fixture;
pub mod plan;
pub mod pool;
pub mod resident_memory;
pub mod rows;
pub mod run;
pub mod session;
pub mod share;
