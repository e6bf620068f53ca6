//! Windows whose memory is counted.
//!
//! DataFusion's windows reserve nothing. The one for frames that end after the current row gathers its whole input
//! before it begins; the other copies rows from batch to batch, and with them the buffers of all texts that it has ever
//! seen. [`CountedWindowExec`] reserves what is held, works on whole partitions of the window as soon as they are there,
//! and keeps texts that no function reads away from DataFusion.

mod bounded;
mod exec;
mod lean;
mod whole;

pub use exec::CountedWindowExec;

use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};

use crate::size::Size;

/// The reservation of a partition of a window.
fn reserve(pool: &Arc<dyn MemoryPool>, partition: usize) -> MemoryReservation {
    MemoryConsumer::new(format!("CountedWindow[{partition}]")).register(pool)
}

/// Says what a window needs memory for, and how to ask for less.
fn explain(error: DataFusionError, bytes: usize, held: &str) -> DataFusionError {
    error.context(format!(
        "A window function keeps {held} in memory, here {}, and cannot move them to disk; raise the memory limit, select \
         fewer columns below it, or divide its rows by PARTITION BY",
        Size(bytes)
    ))
}
