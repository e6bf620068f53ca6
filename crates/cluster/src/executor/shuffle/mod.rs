//! Rows between the tasks of two stages, as compressed blocks.
//!
//! A task writes what a hash partitioning sends to each task of the next stage: a file and an index, laid out as Ballista's sort-based
//! shuffle has them, so that its transport serves them. What differs is what a record batch of the file holds: one binary value, a block of
//! [`overspill_codec`] with thousands of rows. [`BlockStage`] writes such files. [`FetchExec`] reads them, and the files that Ballista writes.

mod blocks;
mod fetch;
mod partitioner;
mod read;
mod write;

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

pub use read::FetchExec;
pub use write::{BlockStage, Output};

/// Bytes of rows in a block, before it is compressed. More compress better, and take more memory where they are read.
const BLOCK_BYTES: usize = 1 << 20;

/// Rows in a block at most: eight chunks of integers.
const BLOCK_ROWS: usize = 32_768;

/// The columns of files of blocks: one.
fn block_schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> =
        LazyLock::new(|| Arc::new(Schema::new(vec![Field::new("block", DataType::LargeBinary, false)])));
    Arc::clone(&SCHEMA)
}
