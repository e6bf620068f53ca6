//! Queries among ranks, which are threads here, beside the same queries in one process.

mod failures;
mod harness;
mod plans;
mod queries;
mod writes;
