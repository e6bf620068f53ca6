//! Makes of a scan of files one that reads certain rows.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use datafusion::common::{Result, exec_datafusion_err, internal_datafusion_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetRowSelection;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::parquet::arrow::arrow_reader::RowSelection;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;

use super::catalog::FileIndex;
use super::cost;
use super::found::{FileRowNumbers, Finder, Sought, TOO_MANY_PAGES};
use super::scan::{ParquetScan, path_of};
use crate::indexes::CancelOnDrop;

/// Rows up to this far apart are read as one range: reading the few between them takes less than skipping them. The join or the
/// filter leaves them out.
const GAP: u64 = 8;

/// A scan of Parquet files with an index of them.
#[derive(Debug)]
pub(crate) struct FileRows {
    pub index: Arc<FileIndex>,
    scan: Arc<DataSourceExec>,
}

/// A scan that reads certain rows.
#[derive(Debug, Clone)]
pub(crate) struct SelectedRows {
    pub plan: Arc<dyn ExecutionPlan>,
    /// Number of the rows, of the blocks of the index that were read for them, and of the pages that have them.
    pub rows: usize,
    pub blocks: usize,
    pub pages: usize,
    /// Pays for their numbers.
    pub memory: Arc<MemoryReservation>,
}

impl FileRows {
    /// An index of the files of a scan.
    pub fn new(index: FileIndex, scan: &DataSourceExec) -> Self {
        Self { index: Arc::new(index), scan: Arc::new(scan.clone()) }
    }

    /// The most keys that are worth a lookup each.
    pub fn most_keys(&self) -> usize {
        usize::try_from(cost::most_keys(self.index.description.table_rows())).unwrap_or(usize::MAX)
    }

    /// The scan of those rows that an index has for what is sought; why not is an error of the second kind. `always` is whatever it
    /// costs.
    ///
    /// # Errors
    /// If the files cannot be read.
    pub async fn select(
        &self,
        sought: Sought,
        always: bool,
        task: &TaskContext,
    ) -> Result<Result<SelectedRows, String>> {
        let scan = ParquetScan::of(&self.scan).ok_or_else(|| internal_datafusion_err!("the scan reads other files"))?;
        let total = self.index.description.table_rows();
        let finder = Finder {
            index: Arc::clone(&self.index),
            sought,
            files: scan.files(),
            always,
            memory: MemoryConsumer::new(format!("Index '{}'", self.index.description.name))
                .register(task.memory_pool()),
        };
        // Stops the thread if the query is cancelled.
        let cancelled = CancelOnDrop::default();
        let is_cancelled = cancelled.flag();
        let finding = tokio::task::spawn_blocking(move || finder.find(&is_cancelled));
        let found = finding.await.map_err(|error| exec_datafusion_err!("The index was not read: {error}"))?;
        let FileRowNumbers { rows, blocks, memory } = match found {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        let (share, pages) = match self.share_read(&rows, &scan, task).await? {
            Ok(read) => read,
            Err(why) => return Ok(Err(why)),
        };
        let count: usize = rows.values().map(Vec::len).sum();
        if !always && !cost::is_worth_it(total, share, count as u64) {
            return Ok(Err(TOO_MANY_PAGES.to_owned()));
        }
        let plan = self.selected(scan.config, rows)?;
        Ok(Ok(SelectedRows { plan, rows: count, blocks, pages, memory: Arc::new(memory) }))
    }

    /// The share of all bytes that reading these rows reads, and in how many pages they are, or why they cannot be read.
    async fn share_read(
        &self,
        rows: &BTreeMap<PathBuf, Vec<u64>>,
        scan: &ParquetScan<'_>,
        task: &TaskContext,
    ) -> Result<Result<(f64, usize), String>> {
        let config = scan.config;
        let store = task.runtime_env().object_store(&config.object_store_url)?;
        let cache = task.runtime_env().cache_manager.get_file_metadata_cache();
        let read: Vec<_> = scan.source.projection().into_iter().flat_map(ProjectionExprs::expr_iter).collect();
        let read: HashSet<_> = read.iter().flat_map(collect_columns).map(|column| column.name().to_owned()).collect();
        let parts: BTreeMap<PathBuf, &PartitionedFile> =
            config.file_groups.iter().flat_map(|group| group.iter()).map(|part| (path_of(part), part)).collect();
        let (mut touched, mut of_files, mut rows_of_files, mut pages) = (0, 0, 0, 0);
        for (path, numbers) in rows {
            let Some((part, (_, file))) = parts.get(path).zip(self.index.file(path)) else { continue };
            // Leaves the places of pages in the cache, where the scan finds them: for a selection alone it does not read them.
            let metadata = DFParquetMetadata::new(store.as_ref(), &part.object_meta)
                .with_file_metadata_cache(Some(Arc::clone(&cache)))
                .fetch_metadata()
                .await?;
            let known: i64 = metadata.row_groups().iter().map(|group| group.num_rows()).sum();
            if u64::try_from(known) != Ok(file.rows) {
                return Ok(Err(format!("{} has another number of rows", path.display())));
            }
            let bytes = PageBytes::of(&metadata, numbers, &read);
            touched += bytes.touched;
            of_files += bytes.all;
            pages += bytes.pages;
            rows_of_files += file.rows;
        }
        if of_files == 0 {
            return Ok(Ok((0.0, pages)));
        }
        // Other files have as much in a row.
        let share = touched as f64 / of_files as f64;
        Ok(Ok((share * rows_of_files as f64 / self.index.description.table_rows() as f64, pages)))
    }

    /// The scan with a selection for each file.
    fn selected(&self, config: &FileScanConfig, rows: BTreeMap<PathBuf, Vec<u64>>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut selections = BTreeMap::new();
        for (path, numbers) in rows {
            let of_file = self.index.file(&path).and_then(|(_, file)| usize::try_from(file.rows).ok());
            let count = of_file.ok_or_else(|| internal_datafusion_err!("{} is not indexed", path.display()))?;
            let selection = RowSelection::from_consecutive_ranges(ranges(&numbers), count);
            selections.insert(path, ParquetRowSelection::new(selection));
        }
        let select = |part: &PartitionedFile| {
            let selection: Option<&ParquetRowSelection> = selections.get(&path_of(part));
            selection.map(|selection| part.clone().with_extension(selection.clone()))
        };
        let groups = config.file_groups.iter().map(|group| FileGroup::new(group.iter().filter_map(select).collect()));
        let config = FileScanConfigBuilder::from(config.clone()).with_file_groups(groups.collect()).build();
        Ok(DataSourceExec::from_data_source(config))
    }
}

/// The ranges of numbers in ascending order, with the rows of small gaps between them.
fn ranges(numbers: &[u64]) -> impl Iterator<Item = Range<usize>> {
    numbers.chunk_by(|one, next| next - one <= GAP).map(|run| run[0] as usize..run[run.len() - 1] as usize + 1)
}

/// Bytes of the pages of a file.
struct PageBytes {
    /// Of pages with certain rows, and the number of these pages.
    touched: u64,
    pages: usize,
    all: u64,
}

impl PageBytes {
    /// Of the leaf columns of these columns. `rows` are in ascending order.
    fn of(metadata: &ParquetMetaData, rows: &[u64], columns: &HashSet<String>) -> Self {
        let (mut bytes, mut rest, mut first) = (Self { touched: 0, pages: 0, all: 0 }, rows, 0);
        for (number, group) in metadata.row_groups().iter().enumerate() {
            let end = first + group.num_rows().unsigned_abs();
            let (own, later) = rest.split_at(rest.partition_point(|row| *row < end));
            rest = later;
            for (leaf, chunk) in group.columns().iter().enumerate() {
                let column = group.schema_descr().get_column_root(leaf).name();
                if !columns.contains(column) {
                    continue;
                }
                let of_chunk = chunk.compressed_size().unsigned_abs();
                bytes.all += of_chunk;
                if own.is_empty() {
                    continue;
                }
                let pages = metadata.offset_index().and_then(|index| index.get(number)?.get(leaf));
                let Some(pages) = pages.map(|index| index.page_locations()).filter(|pages| !pages.is_empty()) else {
                    // Without places of pages the whole chunk is read.
                    (bytes.touched, bytes.pages) = (bytes.touched + of_chunk, bytes.pages + 1);
                    continue;
                };
                // What is no page of rows is the dictionary, without which none of them is decoded.
                let of_rows: u64 = pages.iter().map(|page| u64::from(page.compressed_page_size.unsigned_abs())).sum();
                bytes.touched += of_chunk.saturating_sub(of_rows);
                for (number, page) in pages.iter().enumerate() {
                    let start = first + page.first_row_index.unsigned_abs();
                    let next = pages.get(number + 1).map_or(end, |next| first + next.first_row_index.unsigned_abs());
                    if own.get(own.partition_point(|row| *row < start)).is_some_and(|row| *row < next) {
                        bytes.touched += u64::from(page.compressed_page_size.unsigned_abs());
                        bytes.pages += 1;
                    }
                }
            }
            first = end;
        }
        bytes
    }
}
