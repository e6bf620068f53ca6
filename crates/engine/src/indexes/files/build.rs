//! Builds an index of files.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::AsArray;
use arrow::compute::SortOptions;
use arrow::datatypes::UInt64Type;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::parquet::errors::ParquetError;
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use overspill_index::{IncludedColumn, IndexKind, IndexedFile, StoredDescription, StoredIndexWriter};

use super::catalog::type_name;
use super::included_writer::IncludedWriter;
use super::layout::{Layout, Piece};
use super::numbered_keys::{NumberedKeysExec, NumberedPiece, WORD};
use super::scan::{FileScan, path_of};
use super::{place, state};
use crate::running_plan::RunningPlan;
use crate::sort::SpillingSortExec;
use crate::spill::LockedDirectory;

/// An index that is to be built.
#[derive(Debug)]
pub(crate) struct BuiltIndex {
    pub name: String,
    /// The column, which is the first that the scan returns.
    pub column: String,
    /// The other columns that the scan returns, which the index includes.
    pub included: Vec<String>,
    pub kind: IndexKind,
    /// The path of the index file.
    pub path: PathBuf,
    /// Whether it takes the place of the one there.
    pub replaces: bool,
}

/// Builds an index of the files of a scan, and writes it to its place once it is complete. Keys are sorted by the sort that spills
/// to disk if it outgrows the memory limit.
///
/// # Errors
/// If the files cannot be read, are changed meanwhile, or the index cannot be written.
pub(crate) async fn build(index: &BuiltIndex, scan: FileScan<'_>, ctx: &SessionContext) -> Result<()> {
    let task = ctx.task_ctx();
    let (files, pieces) = files_of(&scan, &task).await?;
    let table_rows: u64 = files.iter().map(|file| file.rows).sum();
    let folder = index.path.parent().unwrap_or_else(|| Path::new("/"));
    // The files that are not complete are beside the folder of indexes, so that only a complete index brings it into being.
    let beside = if folder.is_dir() { folder } else { folder.parent().unwrap_or(folder) };
    let unfinished = LockedDirectory::for_writing(beside).map_err(|error| not_written(index, &error))?;
    let part = unfinished.path().join("index");
    let memory = MemoryConsumer::new(format!("Index '{}'", index.name)).register(task.memory_pool());
    memory.try_grow(StoredIndexWriter::<File>::directory_bytes(table_rows))?;
    let file = File::create_new(&part).map_err(|error| not_written(index, &error))?;
    let mut writer = StoredIndexWriter::new(BufWriter::with_capacity(1 << 20, file), table_rows)
        .map_err(|error| not_written(index, &error))?;
    let nulls = Arc::new(AtomicU64::new(0));
    let streams = task.session_config().target_partitions().min(pieces.len()).max(1);
    let keys = NumberedKeysExec::new(scan.config.clone(), pieces, streams, Arc::clone(&nulls))?;
    let sorted = sorted(Arc::new(keys), streams)?;
    let columns = NumberedKeysExec::included(&sorted.schema());
    let mut included = match columns[..] {
        [] => None,
        _ => {
            let schema = Arc::new(sorted.schema().project(&columns)?);
            let memory = MemoryConsumer::new(format!("Columns of index '{}'", index.name)).register(task.memory_pool());
            let path = unfinished.path().join("included");
            Some(IncludedWriter::new(&path, schema, memory).map_err(|error| not_included(index, error))?)
        }
    };
    let _shown = RunningPlan::show(ctx, &sorted);
    let mut sorted = sorted.execute(0, Arc::clone(&task))?;
    while let Some(batch) = sorted.next().await {
        let batch = batch?;
        let [words, rows] = [0, 1].map(|column| batch.column(column).as_primitive::<UInt64Type>().values());
        writer.push(words, rows).map_err(|error| not_written(index, &error))?;
        if let Some(included) = &mut included {
            included.push(&batch.project(&columns)?).map_err(|error| not_included(index, error))?;
        }
    }
    drop(sorted);
    let included = included.map(IncludedWriter::finish).transpose().map_err(|error| not_included(index, error))?;
    let base = place::base(&index.path);
    let relative = |file: &IndexedFile| {
        let path = base.and_then(|base| file.path.strip_prefix(base).ok()).unwrap_or(&file.path);
        IndexedFile { path: path.to_owned(), ..file.clone() }
    };
    let type_of =
        |column: &str| scan.table_column(column).map(|(_, data_type)| type_name(data_type)).unwrap_or_default();
    let included_columns =
        index.included.iter().map(|name| IncludedColumn { name: name.clone(), data_type: type_of(name) });
    let description = StoredDescription {
        name: index.name.clone(),
        column: index.column.clone(),
        data_type: type_of(&index.column),
        kind: index.kind,
        nulls: nulls.load(Ordering::Relaxed),
        files: files.iter().map(relative).collect(),
        included: included_columns.collect(),
    };
    let included: Box<dyn Read> = match included {
        Some(included) => Box::new(included),
        None => Box::new(io::empty()),
    };
    let file = writer.finish(&description, included).map_err(|error| not_written(index, &error))?;
    let file = file.into_inner().map_err(|error| not_written(index, error.error()))?;
    file.sync_all().map_err(|error| not_written(index, &error))?;
    if let Some(change) = files.iter().find_map(|file| state::change(file, &file.path)) {
        return exec_err!("{change} while index '{}' was built. Create the index again", index.name);
    }
    put_in_place(index, &part, folder)
}

/// The files of a scan in their present state, and their pieces.
async fn files_of(scan: &FileScan<'_>, task: &TaskContext) -> Result<(Vec<IndexedFile>, Vec<NumberedPiece>)> {
    let cache = task.runtime_env().cache_manager.get_file_metadata_cache();
    let mut parts: Vec<_> = scan.config.file_groups.iter().flat_map(|group| group.iter()).collect();
    parts.sort_by_key(|part| path_of(part));
    parts.dedup_by_key(|part| path_of(part));
    let (mut files, mut pieces, mut first_row) = (Vec::new(), Vec::new(), 0);
    for part in parts {
        let path = path_of(part);
        let unreadable = |error: io::Error| exec_datafusion_err!("{} cannot be read: {error}", path.display());
        let before = state::of_file(&path, 0).map_err(unreadable)?;
        // The cache tells files apart by size and time alone. An index outlives the session, so it must not keep what was cached of
        // another file.
        cache.remove(&part.object_meta.location);
        let layout = Layout::read(scan, part, task).await?;
        let rows = layout.rows();
        let mut first_of_piece = first_row;
        for Piece { file, rows } in layout.pieces(part) {
            pieces.push(NumberedPiece { file, first_row: first_of_piece, rows });
            first_of_piece += rows;
        }
        first_row += rows;
        files.push(IndexedFile { rows, ..before });
    }
    Ok((files, pieces))
}

/// Keys in ascending order, as one stream.
fn sorted(keys: Arc<dyn ExecutionPlan>, streams: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let word = Arc::new(Column::new(WORD, 0));
    let order = [PhysicalSortExpr::new(word, SortOptions::default())];
    let sort = SortExec::new(order.clone().into(), keys).with_preserve_partitioning(streams > 1);
    let sorted: Arc<dyn ExecutionPlan> = Arc::new(SpillingSortExec::new(sort));
    if streams == 1 {
        return Ok(sorted);
    }
    Ok(Arc::new(SortPreservingMergeExec::new(order.into(), sorted)))
}

fn not_written(index: &BuiltIndex, error: &dyn std::error::Error) -> DataFusionError {
    exec_datafusion_err!(
        "Index '{}' cannot be written to {}: {error}. SET overspill.index_dir names another folder",
        index.name,
        index.path.display()
    )
}

/// Why included columns are not written.
fn not_included(index: &BuiltIndex, error: DataFusionError) -> DataFusionError {
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => error,
        DataFusionError::ParquetError(cause) if matches!(**cause, ParquetError::NYI(_)) => {
            exec_datafusion_err!(
                "Index '{}' cannot include a column of a type that Parquet does not have: {cause}",
                index.name
            )
        }
        cause => not_written(index, cause),
    }
}

/// Moves a complete index to its place.
fn put_in_place(index: &BuiltIndex, part: &Path, folder: &Path) -> Result<()> {
    let placed = fs::create_dir(folder)
        .or_else(|error| if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })
        .and_then(|()| if index.replaces { fs::rename(part, &index.path) } else { link(part, &index.path) })
        .and_then(|()| File::open(folder)?.sync_all());
    placed.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exec_datafusion_err!("Index '{}' already exists", index.name),
        _ => not_written(index, &error),
    })
}

/// Gives a file another name, unless there is a file of that name.
fn link(part: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(part, path) {
        // Some file systems have no links.
        Err(error) if error.kind() != ErrorKind::AlreadyExists && !path.exists() => fs::rename(part, path),
        linked => linked,
    }
}
