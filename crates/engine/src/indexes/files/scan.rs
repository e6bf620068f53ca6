//! A scan of files that can have indexes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arrow::datatypes::DataType;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{ParquetAccessPlan, ParquetRowSelection};
use datafusion::datasource::physical_plan::{ArrowSource, FileScanConfig, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::Column;

use crate::files::arrow::CheckedSource;

/// The formats of files that can have indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Parquet,
    /// Arrow files with a footer.
    Arrow,
}

/// A scan of files of one format that reads all rows of each.
#[derive(Clone, Copy)]
pub(crate) struct FileScan<'a> {
    pub config: &'a FileScanConfig,
    pub source: &'a dyn FileSource,
    pub(super) format: Format,
}

impl<'a> FileScan<'a> {
    /// What a node scans; `None` if it is another, reads files of another machine, or only a part of a file's rows.
    pub fn of(scan: &'a DataSourceExec) -> Option<Self> {
        let config = scan.data_source().downcast_ref::<FileScanConfig>()?;
        let source = &**config.file_source();
        let format = match source.file_type() {
            _ if source.is::<ParquetSource>() => Format::Parquet,
            "arrow" if source.is::<CheckedSource>() || source.is::<ArrowSource>() => Format::Arrow,
            _ => return None,
        };
        let scan = Self { config, source, format };
        (config.object_store_url.as_str() == "file:///" && config.limit.is_none() && scan.reads_whole_files())
            .then_some(scan)
    }

    /// All parts of files.
    fn parts(&self) -> impl Iterator<Item = &'a PartitionedFile> {
        self.config.file_groups.iter().flat_map(|group| group.iter())
    }

    fn reads_whole_files(&self) -> bool {
        let mut parts: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for part in self.parts() {
            if part.extension::<ParquetAccessPlan>().is_some() || part.extension::<ParquetRowSelection>().is_some() {
                return false;
            }
            let size = part.object_meta.size;
            parts.entry((part.path(), size)).or_default().push(part.range());
        }
        parts.into_iter().all(|((_, size), mut ranges)| {
            ranges.sort_unstable();
            // Each byte is in some range.
            ranges.into_iter().try_fold(0, |end, (start, next)| (start <= end).then_some(next.max(end))) == Some(size)
        })
    }

    /// Whether no row of a file is read twice.
    pub(super) fn reads_rows_once(&self) -> bool {
        let mut sizes = BTreeMap::new();
        let parts = self.parts().map(|part| {
            sizes.insert(part.path(), part.object_meta.size);
            let (start, end) = part.range();
            end.saturating_sub(start)
        });
        let read: u64 = parts.sum();
        read == sizes.into_values().sum::<u64>()
    }

    /// The paths of the files, each once, in order.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = self.parts().map(path_of).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// The name and the type, in the table, of a column that the scan returns as it is.
    pub fn column(&self, column: usize) -> Option<(&'a str, &'a DataType)> {
        let projection = self.source.projection()?;
        self.table_column(projection.as_ref().get(column)?.expr.downcast_ref::<Column>()?.name())
    }

    /// A column of the table, by its name.
    pub fn table_column(&self, name: &str) -> Option<(&'a str, &'a DataType)> {
        let field = self.source.table_schema().table_schema().field_with_name(name).ok()?;
        Some((field.name(), field.data_type()))
    }
}

/// The path of a file in the store of this machine's files.
pub(super) fn path_of(file: &PartitionedFile) -> PathBuf {
    Path::new("/").join(file.path().as_ref())
}
