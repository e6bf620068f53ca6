//! Reads the included columns of an index, which are a Parquet file within the index file.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{ParquetFileMetrics, ParquetFileReaderFactory};
use datafusion::parquet::arrow::arrow_reader::ArrowReaderOptions;
use datafusion::parquet::arrow::async_reader::AsyncFileReader;
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use datafusion::parquet::file::reader::{ChunkReader, Length};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet};
use futures::FutureExt;
use futures::future::BoxFuture;
use overspill_index::{IncludedColumns, StoredError};

/// The included columns of an open index. They stay readable when the index is dropped or made anew.
#[derive(Clone)]
pub(super) struct IncludedRows {
    bytes: Arc<IncludedBytes>,
    pub metadata: Arc<ParquetMetaData>,
}

#[derive(Debug)]
struct IncludedBytes {
    columns: IncludedColumns,
    /// The path of the index file.
    path: PathBuf,
}

impl fmt::Debug for IncludedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncludedRows").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl IncludedRows {
    /// Opens the included columns of the index in a file.
    ///
    /// # Errors
    /// If they cannot be read, or are damaged.
    pub fn open(file: File, path: &Path) -> Result<Self, ParquetError> {
        let columns = IncludedColumns::open(file).map_err(|error| damaged(path, &error))?;
        let bytes = Arc::new(IncludedBytes { columns, path: path.to_owned() });
        let reader = ParquetMetaDataReader::new().with_offset_index_policy(PageIndexPolicy::Required);
        let metadata = Arc::new(reader.parse_and_finish(bytes.as_ref())?);
        Ok(Self { bytes, metadata })
    }

    /// How many bytes the columns are.
    pub fn bytes(&self) -> u64 {
        self.bytes.columns.bytes()
    }

    /// Bytes of memory that they take while they are open.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.columns.memory_bytes() + self.metadata.memory_size()
    }
}

fn damaged(path: &Path, error: &StoredError) -> ParquetError {
    ParquetError::General(format!("{}: {error}. Drop the index, and create it again", path.display()))
}

impl IncludedBytes {
    fn read(&self, range: Range<u64>) -> Result<Bytes, ParquetError> {
        self.columns.read(range).map(Bytes::from).map_err(|error| damaged(&self.path, &error))
    }
}

impl Length for IncludedBytes {
    fn len(&self) -> u64 {
        self.columns.bytes()
    }
}

impl ChunkReader for IncludedBytes {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.read(start..self.len())?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.read(start..start.saturating_add(length as u64))
    }
}

impl ParquetFileReaderFactory for IncludedRows {
    fn create_reader(
        &self,
        partition: usize,
        file: PartitionedFile,
        _: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let metrics = ParquetFileMetrics::new(partition, file.path().as_ref(), metrics);
        Ok(Box::new(IncludedReader { rows: self.clone(), scanned: metrics.bytes_scanned }))
    }
}

/// Reads the columns for a scan.
struct IncludedReader {
    rows: IncludedRows,
    /// Counts the bytes.
    scanned: Count,
}

impl AsyncFileReader for IncludedReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes, ParquetError>> {
        let read = self.get_byte_ranges(vec![range]);
        async { Ok(read.await?.pop().unwrap_or_default()) }.boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>, ParquetError>> {
        let bytes = Arc::clone(&self.rows.bytes);
        self.scanned.add(ranges.iter().map(|range| (range.end - range.start) as usize).sum());
        let read = tokio::task::spawn_blocking(move || ranges.into_iter().map(|range| bytes.read(range)).collect());
        async { read.await.map_err(|error| ParquetError::External(Box::new(error)))? }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>, ParquetError>> {
        let metadata = Arc::clone(&self.rows.metadata);
        async { Ok(metadata) }.boxed()
    }
}
