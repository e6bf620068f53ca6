//! Writes the columns that an index includes.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};

/// Rows of a page. A lookup decodes the page of a row.
pub(super) const PAGE_ROWS: usize = 1 << 13;

/// Bytes of memory that a row group takes before it is written, unless less memory is left.
const GROUP_BYTES: usize = 64 << 20;

/// Writes rows in the order of keys as a Parquet file.
pub(super) struct IncludedWriter {
    writer: ArrowWriter<File>,
    /// Pays for the row group that is being written.
    memory: MemoryReservation,
}

impl IncludedWriter {
    /// Begins a new file, for rows of this schema.
    ///
    /// # Errors
    /// If the file cannot be made, or Parquet has no such type.
    pub fn new(path: &Path, schema: SchemaRef, memory: MemoryReservation) -> Result<Self> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::LZ4_RAW)
            .set_data_page_row_count_limit(PAGE_ROWS)
            .set_write_batch_size(PAGE_ROWS)
            // Reading any page would read the dictionary of its row group as well.
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .build();
        let file = File::options().create_new(true).read(true).write(true).open(path)?;
        Ok(Self { writer: ArrowWriter::try_new(file, schema, Some(properties))?, memory })
    }

    /// Adds rows.
    ///
    /// # Errors
    /// If they cannot be written, or the memory for a row group of few rows is lacking.
    pub fn push(&mut self, rows: &RecordBatch) -> Result<()> {
        self.writer.write(rows)?;
        let bytes = self.writer.memory_size();
        if bytes > GROUP_BYTES || self.memory.try_resize(bytes).is_err() {
            self.writer.flush()?;
            self.memory.try_resize(self.writer.memory_size())?;
        }
        Ok(())
    }

    /// Completes the file. Returns it, at its beginning.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(self) -> Result<File> {
        let mut file = self.writer.into_inner()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }
}
