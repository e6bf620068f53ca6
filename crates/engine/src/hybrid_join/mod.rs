//! The one join operator of Overspill.

mod exec;

pub use exec::HybridJoinExec;
