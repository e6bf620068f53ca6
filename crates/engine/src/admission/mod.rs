//! The node at the root of a plan that waits until the query may run.

mod exec;
mod metrics;
mod query;
mod stream;

pub use exec::AdmissionExec;
