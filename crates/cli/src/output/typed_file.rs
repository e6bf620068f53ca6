//! Parquet and Arrow files, which hold one result.

use std::io::Write;

use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::FileWriter;
use arrow::record_batch::RecordBatch;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::RowWriter;

pub struct ParquetWriter<W: Write + Send> {
    writer: Option<parquet::arrow::ArrowWriter<W>>,
    /// The maximum bytes of a row group that the writer buffers, beside the memory limit.
    buffer: usize,
}

impl<W: Write + Send> ParquetWriter<W> {
    pub fn new(destination: W, schema: &SchemaRef, buffer: usize) -> Result<Self, ArrowError> {
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
        let writer = parquet::arrow::ArrowWriter::try_new(destination, schema.clone(), Some(properties))?;
        Ok(Self { writer: Some(writer), buffer })
    }
}

impl<W: Write + Send> RowWriter for ParquetWriter<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writer.write(batch)?;
        if writer.memory_size() > self.buffer {
            writer.flush()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), ArrowError> {
        if let Some(writer) = self.writer.take() {
            writer.close()?;
        }
        Ok(())
    }
}

impl<W: Write> RowWriter for FileWriter<W> {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        FileWriter::write(self, batch)
    }

    fn finish(&mut self) -> Result<(), ArrowError> {
        FileWriter::finish(self)
    }
}
