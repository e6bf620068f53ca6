//! Windows with memory accounting.
//!
//! DataFusion's windows reserve no memory. The one for frames that end after the current row gathers its whole input before
//! it begins; the other copies rows from batch to batch, and with them the buffers of all texts that it has ever seen.
//! [`CountedWindowExec`] reserves the memory that it holds, computes each partition of the window as soon as it is complete,
//! and does not pass DataFusion the texts that no function reads.

mod bounded;
mod exec;
mod lean;
mod whole;

pub use exec::CountedWindowExec;

use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};

use crate::size::Size;

fn reserve(pool: &Arc<dyn MemoryPool>, partition: usize) -> MemoryReservation {
    MemoryConsumer::new(format!("CountedWindow[{partition}]")).register(pool)
}

/// Adds to an error what the window needs memory for, and how to use less.
fn explain(error: DataFusionError, bytes: usize, held: &str) -> DataFusionError {
    error.context(format!(
        "A window function keeps {held} in memory, here {}, and cannot move them to disk; raise the memory limit, select \
         fewer columns below it, or divide its rows by PARTITION BY",
        Size(bytes)
    ))
}
