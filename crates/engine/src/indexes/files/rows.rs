//! Makes of a scan of files one that reads certain rows.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use datafusion::common::{Result, exec_datafusion_err, internal_datafusion_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort::SortExec;

use super::catalog::FileIndex;
use super::found::{FileRowNumbers, Finder, IncludedPlaces, Sought, TOO_MANY_PAGES};
use super::layout::{Layout, merged, pages, ranges};
use super::scan::{FileScan, path_of};
use super::{cost, index_only};
use crate::indexes::CancelOnDrop;
use crate::sort::SpillingSortExec;

/// A scan of files with an index of them.
#[derive(Debug)]
pub(crate) struct FileRows {
    pub index: Arc<FileIndex>,
    scan: Arc<DataSourceExec>,
    /// Whether the columns that the index includes are read in place of the files.
    pub is_index_only: bool,
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
    pub fn new(index: FileIndex, scan: &DataSourceExec, scanned: &FileScan<'_>) -> Self {
        let is_index_only = index_only::is_index_only(&index, scanned);
        Self { index: Arc::new(index), scan: Arc::new(scan.clone()), is_index_only }
    }

    /// The most keys that are worth a lookup each.
    pub fn most_keys(&self) -> usize {
        usize::try_from(cost::most_keys(self.index.description.table_rows())).unwrap_or(usize::MAX)
    }

    /// The scan of those rows that an index has for what is sought; why not is an error of the second kind. `always` is whatever it
    /// costs. With an `order`, which is that of the scan of all rows, they come in it.
    ///
    /// # Errors
    /// If the files cannot be read.
    pub async fn select(
        &self,
        sought: Sought,
        always: bool,
        order: Option<&LexOrdering>,
        task: &TaskContext,
    ) -> Result<Result<SelectedRows, String>> {
        let scan = FileScan::of(&self.scan).ok_or_else(|| internal_datafusion_err!("the scan reads other files"))?;
        let finder = Finder {
            index: Arc::clone(&self.index),
            sought,
            files: scan.files(),
            always,
            memory: MemoryConsumer::new(format!("Index '{}'", self.index.description.name))
                .register(task.memory_pool()),
        };
        if self.is_index_only {
            self.select_included(finder, &scan, order).await
        } else {
            self.select_rows(finder, &scan, task).await
        }
    }

    /// The scan of the files.
    async fn select_rows(
        &self,
        finder: Finder,
        scan: &FileScan<'_>,
        task: &TaskContext,
    ) -> Result<Result<SelectedRows, String>> {
        let always = finder.always;
        let FileRowNumbers { rows, blocks, memory } = match found(finder, Finder::find).await? {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        let Read { share, pages, opening, layouts } = match self.read(&rows, scan, task).await? {
            Ok(read) => read,
            Err(why) => return Ok(Err(why)),
        };
        let count: usize = rows.values().map(Vec::len).sum();
        let total = self.index.description.table_rows();
        if !always && !cost::is_worth_it(total, share, count as u64, opening) {
            return Ok(Err(TOO_MANY_PAGES.to_owned()));
        }
        let plan = selected(scan.config, &rows, &layouts);
        Ok(Ok(SelectedRows { plan, rows: count, blocks, pages, memory: Arc::new(memory) }))
    }

    /// The scan of the included columns.
    async fn select_included(
        &self,
        finder: Finder,
        scan: &FileScan<'_>,
        order: Option<&LexOrdering>,
    ) -> Result<Result<SelectedRows, String>> {
        let always = finder.always;
        let IncludedPlaces { included, places, blocks, memory } = match found(finder, Finder::find_included).await? {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        let places = merged(places);
        let rows: u64 = places.iter().map(|places| places.end - places.start).sum();
        let touched = pages(&included.metadata, &places, &read_columns(scan));
        let share = touched.bytes as f64 / touched.all.max(1) as f64;
        // Rows in one range are decoded as those of a scan.
        let sorting = order.map_or(0, |order| cost::sorting(rows, order.len()));
        if !always && !cost::is_worth_it(self.index.description.table_rows(), share, places.len() as u64, sorting) {
            return Ok(Err(TOO_MANY_PAGES.to_owned()));
        }
        let mut plan = index_only::selected(scan, included, &places)?;
        if let Some(order) = order {
            let sort = SortExec::new(order.clone(), plan).with_preserve_partitioning(true);
            plan = Arc::new(SpillingSortExec::new(sort));
        }
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        Ok(Ok(SelectedRows { plan, rows, blocks, pages: touched.pages, memory: Arc::new(memory) }))
    }

    /// What reading these rows reads, or why they cannot be read.
    async fn read(
        &self,
        rows: &BTreeMap<PathBuf, Vec<u64>>,
        scan: &FileScan<'_>,
        task: &TaskContext,
    ) -> Result<Result<Read, String>> {
        let read = read_columns(scan);
        let groups = scan.config.file_groups.iter();
        let parts: BTreeMap<PathBuf, &PartitionedFile> =
            groups.flat_map(|group| group.iter()).map(|part| (path_of(part), part)).collect();
        let (mut touched, mut of_files, mut rows_of_files, mut pages, mut opening) = (0, 0, 0, 0, 0);
        let mut layouts = BTreeMap::new();
        for (path, numbers) in rows {
            let Some((part, (_, file))) = parts.get(path).zip(self.index.file(path)) else { continue };
            let layout = Layout::read(scan, part, task).await?;
            let numbers = &ranges(numbers);
            if layout.rows() != file.rows {
                return Ok(Err(format!("{} has another number of rows", path.display())));
            }
            let of_file = layout.touched(numbers, &read);
            touched += of_file.bytes;
            of_files += of_file.all;
            pages += of_file.pages;
            opening += of_file.opening;
            rows_of_files += file.rows;
            layouts.insert(path.clone(), layout);
        }
        // Other files have as much in a row.
        let share = if of_files == 0 { 0.0 } else { touched as f64 / of_files as f64 };
        let share = share * rows_of_files as f64 / self.index.description.table_rows().max(1) as f64;
        Ok(Ok(Read { share, pages, opening, layouts }))
    }
}

/// What a lookup finds, on a thread that may wait for the disk, and that stops if the query is cancelled.
async fn found<T: Send + 'static>(
    finder: Finder,
    find: impl FnOnce(Finder, &AtomicBool) -> Result<T, String> + Send + 'static,
) -> Result<Result<T, String>> {
    let cancelled = CancelOnDrop::default();
    let is_cancelled = cancelled.flag();
    let finding = tokio::task::spawn_blocking(move || find(finder, &is_cancelled));
    finding.await.map_err(|error| exec_datafusion_err!("The index was not read: {error}"))
}

/// The names of the columns that a scan returns.
fn read_columns(scan: &FileScan<'_>) -> HashSet<String> {
    let read: Vec<_> = scan.source.projection().into_iter().flat_map(ProjectionExprs::expr_iter).collect();
    read.iter().flat_map(collect_columns).map(|column| column.name().to_owned()).collect()
}

/// What reading certain rows of files reads.
struct Read {
    /// The share of all bytes of the table.
    share: f64,
    /// Number of pages or batches.
    pages: usize,
    /// The time to open files.
    opening: u64,
    /// Where the rows of each file are.
    layouts: BTreeMap<PathBuf, Layout>,
}

/// The scan of those parts of files that have these rows.
fn selected(
    config: &FileScanConfig,
    rows: &BTreeMap<PathBuf, Vec<u64>>,
    layouts: &BTreeMap<PathBuf, Layout>,
) -> Arc<dyn ExecutionPlan> {
    let select = |part: &PartitionedFile| {
        let path = path_of(part);
        let of_file = rows.get(&path).zip(layouts.get(&path));
        of_file.map(|(rows, layout)| layout.selected(part, &ranges(rows))).unwrap_or_default()
    };
    let groups = config.file_groups.iter().map(|group| FileGroup::new(group.iter().flat_map(select).collect()));
    let config = FileScanConfigBuilder::from(config.clone()).with_file_groups(groups.collect()).build();
    DataSourceExec::from_data_source(config)
}
