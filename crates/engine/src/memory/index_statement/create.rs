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
use super::tables::{Tables, column_of, index_dir, scan_of};
use crate::indexes::files::{BuiltIndex, ParquetScan, build, folder_for, path_in};
use crate::indexes::{CancelOnDrop, CreateIndex, IndexedRows, TableIndex};
use crate::memory::table::lock;

/// The kind of an index that the statement does not say: the fastest and, but for binary search, the smallest.
const DEFAULT_KIND: IndexKind = IndexKind::RadixSpline;

/// Makes an index of a table in memory or of files.
pub(super) async fn create_index(ctx: &SessionContext, create: CreateIndex) -> Result<()> {
    let reference = &create.table;
    let table = ctx.table_provider(reference.clone()).await?;
    let number = || {
        let schema = table.schema();
        let number = column_of(&schema, &create.column, reference)?;
        let data_type = schema.field(number).data_type();
        if !OrderedWords::supports(data_type) {
            return plan_err!(
                "Column '{}' of type {data_type} cannot be indexed: columns of integers, dates, times, timestamps, durations, \
                 decimals of up to 18 digits, text and binary values can",
                create.column
            );
        }
        Ok(number)
    };
    if table.downcast_ref::<ReservedMemTable>().is_some() {
        return in_memory(ctx, &create, &table, number).await;
    }
    let unsupported = || {
        plan_datafusion_err!(
            "'{reference}' cannot have an index: only tables in memory, which CREATE TABLE … AS makes of any query, and Parquet files \
             have indexes"
        )
    };
    if scan_of(ctx, &table, None).await?.is_none() {
        return Err(unsupported());
    }
    let plan = scan_of(ctx, &table, Some(number()?)).await?.ok_or_else(unsupported)?;
    let scan = plan.downcast_ref::<DataSourceExec>().and_then(ParquetScan::of).ok_or_else(unsupported)?;
    let files = scan.files();
    let path = path_in(&folder_for(files.iter().map(PathBuf::as_path), &index_dir(ctx))?, &create.name);
    if path.exists() || has_index(ctx, &create.name).await? {
        return exists(&create);
    }
    let index = BuiltIndex {
        name: create.name.clone(),
        column: create.column.clone(),
        kind: create.kind.unwrap_or(DEFAULT_KIND),
        path,
    };
    build(&index, scan, ctx.task_ctx()).await.map_err(|error| explained(error, &create.name, reference))
}

/// Whether a table in memory has an index of this name.
async fn has_index(ctx: &SessionContext, name: &str) -> Result<bool> {
    let tables = Tables::all(ctx).await?;
    let mut indexes = tables.memory.iter().filter_map(|(_, table)| table.downcast_ref::<ReservedMemTable>());
    Ok(indexes.any(|table| table.indexes().all().iter().any(|index| index.name == name)))
}

fn exists(create: &CreateIndex) -> Result<()> {
    if create.if_not_exists { Ok(()) } else { exec_err!("Index '{}' already exists", create.name) }
}

async fn in_memory(
    ctx: &SessionContext,
    create: &CreateIndex,
    provider: &Arc<dyn TableProvider>,
    number: impl FnOnce() -> Result<usize>,
) -> Result<()> {
    let CreateIndex { name, table: reference, column, kind, .. } = create;
    let Some(table) = provider.downcast_ref::<ReservedMemTable>() else { return Ok(()) };
    if !Tables::all(ctx).await?.named(name)?.is_empty() {
        return exists(create);
    }
    let number = number()?;
    let kind = kind.unwrap_or(DEFAULT_KIND);
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
    table.indexes().add(TableIndex::new(name.clone(), column.clone(), kind, built))
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
