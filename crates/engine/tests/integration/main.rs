//! The integration tests of the engine, in one binary so that DataFusion is linked once.
//!
//! - `differential`: random queries give the answers of stock DataFusion and of DuckDB, in ample and in little memory.
//! - `faults`: reservations, writes and reads that fail, streams that are dropped or never polled.
//! - `bad_input`: inputs and budgets at the edge of what makes sense.
//! - `device`: joins on the emulated device, down to its least memory, and with every failure of its driver.
//! - `selection`: filters with aggregates above them, random ones and which plans are fused.
//! - `strategies`: how joins are planned to run in memory, and large tables each way.
//! - `types`: what names stand for, and how values of different types meet.

mod bad_input;
mod device;
mod differential;
#[allow(dead_code)] // The tests of kernels use more of it.
#[path = "../../../kernels/tests/integration/emulated.rs"]
mod emulated;
mod faults;
mod harness;
mod selection;
mod strategies;
mod types;
