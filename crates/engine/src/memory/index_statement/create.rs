//! Runs `CREATE INDEX`.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::common::{
    DataFusionError, Result, TableReference, exec_datafusion_err, exec_err, plan_datafusion_err, plan_err,
    resources_datafusion_err,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::prelude::SessionContext;
use overspill_index::{IndexKind, OrderedWords};

use super::ReservedMemTable;
use super::tables::{Indexed, Tables, index_dir, scan_of};
use crate::indexes::files::{BuiltIndex, FileScan, build, folder_for, path_in};
use crate::indexes::{CancelOnDrop, CreateIndex, IndexedRows, TableIndex};
use crate::memory::table::lock;

/// The kind of an index that the statement does not say: the fastest and, but for binary search, the smallest.
const DEFAULT_KIND: IndexKind = IndexKind::RadixSpline;

/// Makes an index of a table in memory or of files.
pub(super) async fn create_index(ctx: &SessionContext, create: CreateIndex) -> Result<()> {
    let CreateIndex { name, table: reference, column, included, kind, if_not_exists } = create;
    let provider = ctx.table_provider(reference.clone()).await?;
    let kind = kind.unwrap_or(DEFAULT_KIND);
    let exists = || if if_not_exists { Ok(()) } else { exec_err!("Index '{name}' already exists") };
    let named = Tables::all(ctx).await?.named(&name)?;
    if let Some(table) = provider.downcast_ref::<ReservedMemTable>() {
        if !included.is_empty() {
            return plan_err!("INCLUDE is for indexes of files: a table in memory has all its columns at hand");
        }
        if !named.is_empty() {
            return exists();
        }
        return rows_in_memory(ctx, &provider, &reference, &name, &column, kind, |built| {
            table.indexes().add(TableIndex::new(name.clone(), column.clone(), kind, built))
        })
        .await;
    }
    let plan = scan_of(ctx, &provider, None).await?.ok_or_else(|| unsupported(&reference))?;
    let scan = plan.downcast_ref::<DataSourceExec>().and_then(FileScan::of).ok_or_else(|| unsupported(&reference))?;
    let files = scan.files();
    let path = path_in(&folder_for(files.iter().map(PathBuf::as_path), &index_dir(ctx))?, &name);
    // Tables of files may have indexes of one name, as they are in several folders.
    if path.exists() || named.iter().any(|index| matches!(index, Indexed::Memory(..))) {
        return exists();
    }
    let index = BuiltIndex { name, column, included, kind, path, replaces: false };
    in_files(ctx, &provider, &reference, &index).await
}

fn unsupported(reference: &TableReference) -> DataFusionError {
    plan_datafusion_err!(
        "'{reference}' cannot have an index: only tables in memory, which CREATE TABLE … AS makes of any query, and files of \
         Parquet and Arrow have indexes"
    )
}

/// The number of a column.
fn place_of(provider: &Arc<dyn TableProvider>, column: &str, reference: &TableReference) -> Result<usize> {
    let schema = provider.schema();
    schema.index_of(column).or_else(|_| {
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        plan_err!("Table '{reference}' has no column '{column}', but: {}", names.join(", "))
    })
}

/// The number of a column, if it can be indexed.
fn number_of(provider: &Arc<dyn TableProvider>, column: &str, reference: &TableReference) -> Result<usize> {
    let schema = provider.schema();
    let number = place_of(provider, column, reference)?;
    let data_type = schema.field(number).data_type();
    if !OrderedWords::supports(data_type) {
        return plan_err!(
            "Column '{column}' of type {data_type} cannot be indexed: columns of integers, dates, times, timestamps, durations, decimals \
             of up to 18 digits, text and binary values can"
        );
    }
    Ok(number)
}

/// Writes an index of files.
pub(super) async fn in_files(
    ctx: &SessionContext,
    provider: &Arc<dyn TableProvider>,
    reference: &TableReference,
    index: &BuiltIndex,
) -> Result<()> {
    let mut columns = vec![number_of(provider, &index.column, reference)?];
    for column in &index.included {
        columns.push(place_of(provider, column, reference)?);
    }
    let plan = scan_of(ctx, provider, Some(&columns)).await?.ok_or_else(|| unsupported(reference))?;
    let scan = plan.downcast_ref::<DataSourceExec>().and_then(FileScan::of).ok_or_else(|| unsupported(reference))?;
    let files = scan.source.table_schema().file_schema();
    if let Some(folder) = index.included.iter().find(|column| files.index_of(column).is_err()) {
        return plan_err!("Column '{folder}' cannot be included: it is in the names of folders, and in no file");
    }
    build(index, scan, ctx).await.map_err(|error| explained(error, &index.name, reference))
}

/// Builds an index of a table in memory, and hands it over while nothing can change the table.
pub(super) async fn rows_in_memory(
    ctx: &SessionContext,
    provider: &Arc<dyn TableProvider>,
    reference: &TableReference,
    name: &str,
    column: &str,
    kind: IndexKind,
    hand_over: impl FnOnce(IndexedRows) -> Result<()>,
) -> Result<()> {
    let number = number_of(provider, column, reference)?;
    let table = provider.downcast_ref::<ReservedMemTable>().ok_or_else(|| unsupported(reference))?;
    let memory = MemoryConsumer::new(format!("Index '{name}'")).register(&ctx.runtime_env().memory_pool);
    let partitions = table.snapshot().await;
    let threads = ctx.state().config().target_partitions();
    // Stops the threads if the statement is cancelled.
    let cancelled = CancelOnDrop::default();
    let (rows, is_cancelled) = (partitions.clone(), cancelled.flag());
    let building = tokio::task::spawn_blocking(move || {
        let rows: Vec<&[RecordBatch]> = rows.iter().map(Vec::as_slice).collect();
        IndexedRows::build(&rows, number, kind, memory, threads, &is_cancelled)
    });
    let built = building.await.map_err(|error| exec_datafusion_err!("Index '{name}' was not built: {error}"))?;
    let built = built.map_err(|error| explained(error, name, reference))?;
    let locked = lock(table.partitions()).await;
    let now: Vec<&[RecordBatch]> = locked.iter().map(|partition| partition.as_slice()).collect();
    if !built.are(&now) {
        return exec_err!("Table '{reference}' was changed while index '{name}' was built. Create the index again");
    }
    hand_over(built)
}

/// Adds what lacked the memory to an error.
fn explained(error: DataFusionError, name: &str, table: &TableReference) -> DataFusionError {
    match error.find_root() {
        DataFusionError::ResourcesExhausted(cause) => {
            resources_datafusion_err!("Index '{name}' on table '{table}' does not fit the memory limit. {cause}")
        }
        _ => error,
    }
}
