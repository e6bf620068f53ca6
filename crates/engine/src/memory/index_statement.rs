//! Runs `CREATE INDEX`, `DROP INDEX` and `SHOW INDEXES` over tables in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::TableProvider;
use datafusion::common::{
    DataFusionError, Result, TableReference, exec_datafusion_err, exec_err, plan_err, resources_datafusion_err,
};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use overspill_index::{IndexKind, OrderedWords};

use super::ReservedMemTable;
use super::table::lock;
use crate::indexes::{CreateIndex, DropIndex, IndexAction, IndexStatement, IndexedRows, TableIndex};

/// The kind of an index that the statement does not say: the fastest and, but for binary search, the smallest.
const DEFAULT_KIND: IndexKind = IndexKind::RadixSpline;

/// The statement about indexes that a plan is.
pub(super) fn index_statement(plan: &LogicalPlan) -> Option<&IndexStatement> {
    let LogicalPlan::Extension(extension) = plan else { return None };
    extension.node.as_any().downcast_ref()
}

/// Whether a plan creates or drops indexes, and returns no rows.
pub fn changes_indexes(plan: &LogicalPlan) -> bool {
    index_statement(plan).is_some_and(|statement| statement.action != IndexAction::Show)
}

/// Runs a statement. Returns its rows, if it has any.
pub(super) async fn run(ctx: &SessionContext, statement: IndexStatement) -> Result<Option<RecordBatch>> {
    match statement.action {
        IndexAction::Create(create) => create_index(ctx, create).await?,
        IndexAction::Drop(drop) => drop_indexes(ctx, &drop).await?,
        IndexAction::Show => return listed(&tables(ctx).await?).map(Some),
    }
    Ok(None)
}

/// The table that an index is made on, as a table in memory.
async fn create_index(ctx: &SessionContext, create: CreateIndex) -> Result<()> {
    let CreateIndex { name, table: reference, column, kind, if_not_exists } = create;
    let provider = ctx.table_provider(reference.clone()).await?;
    let Some(table) = provider.downcast_ref::<ReservedMemTable>() else {
        return plan_err!(
            "'{reference}' cannot have an index: only tables in memory have indexes, which CREATE TABLE … AS makes of any query"
        );
    };
    if tables(ctx).await?.iter().any(|(_, table)| has_index(table, &name)) {
        return if if_not_exists { Ok(()) } else { exec_err!("Index '{name}' already exists") };
    }
    let schema = provider.schema();
    let Ok(number) = schema.index_of(&column) else {
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        return plan_err!("Table '{reference}' has no column '{column}', but: {}", names.join(", "));
    };
    let data_type = schema.field(number).data_type();
    if !OrderedWords::supports(data_type) {
        return plan_err!(
            "Column '{column}' of type {data_type} cannot be indexed: columns of integers, dates, times, timestamps, durations, decimals \
             of up to 18 digits, text and binary values can"
        );
    }
    let kind = kind.unwrap_or(DEFAULT_KIND);
    let memory = MemoryConsumer::new(format!("Index '{name}'")).register(&ctx.runtime_env().memory_pool);
    let partitions = table.snapshot().await;
    let threads = ctx.state().config().target_partitions();
    // Stops the threads if the statement is cancelled.
    let cancelled = CancelOnDrop(Arc::default());
    let (rows, is_cancelled) = (partitions.clone(), Arc::clone(&cancelled.0));
    let building = tokio::task::spawn_blocking(move || {
        let rows: Vec<&[RecordBatch]> = rows.iter().map(Vec::as_slice).collect();
        IndexedRows::build(&rows, number, kind, memory, threads, &is_cancelled)
    });
    let built = building.await.map_err(|error| exec_datafusion_err!("Index '{name}' was not built: {error}"))?;
    let built = built.map_err(|error| match error.find_root() {
        DataFusionError::ResourcesExhausted(cause) => {
            resources_datafusion_err!("Index '{name}' on table '{reference}' does not fit the memory limit. {cause}")
        }
        _ => error,
    })?;
    let locked = lock(table.partitions()).await;
    let now: Vec<&[RecordBatch]> = locked.iter().map(|partition| partition.as_slice()).collect();
    if !built.are(&now) {
        return exec_err!("Table '{reference}' was changed while index '{name}' was built. Create the index again");
    }
    table.indexes().add(TableIndex::new(name, column, kind, built))
}

/// Stops the threads that build an index when the statement is dropped, as a cancelled statement is.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn drop_indexes(ctx: &SessionContext, drop: &DropIndex) -> Result<()> {
    let tables = tables(ctx).await?;
    let missing = drop.names.iter().find(|name| !tables.iter().any(|(_, table)| has_index(table, name)));
    if let Some(name) = missing.filter(|_| !drop.if_exists) {
        return exec_err!("Index '{name}' does not exist. SHOW INDEXES lists those that do");
    }
    for name in &drop.names {
        tables
            .iter()
            .filter_map(|(_, table)| table.downcast_ref::<ReservedMemTable>())
            .any(|table| table.indexes().remove(name));
    }
    Ok(())
}

type NamedTable = (TableReference, Arc<dyn TableProvider>);

fn has_index(table: &Arc<dyn TableProvider>, name: &str) -> bool {
    let table = table.downcast_ref::<ReservedMemTable>();
    table.is_some_and(|table| table.indexes().all().iter().any(|index| index.name == name))
}

/// The tables in memory of all schemas.
async fn tables(ctx: &SessionContext) -> Result<Vec<NamedTable>> {
    let mut tables = Vec::new();
    for catalog_name in ctx.catalog_names() {
        let Some(catalog) = ctx.catalog(&catalog_name) else { continue };
        for schema_name in catalog.schema_names() {
            let Some(schema) = catalog.schema(&schema_name) else { continue };
            for name in schema.table_names() {
                if let Some(table) = schema.table(&name).await?
                    && table.downcast_ref::<ReservedMemTable>().is_some()
                {
                    tables.push((TableReference::full(catalog_name.as_str(), schema_name.as_str(), name), table));
                }
            }
        }
    }
    Ok(tables)
}

/// A line for each index.
fn listed(tables: &[NamedTable]) -> Result<RecordBatch> {
    let indexes: Vec<_> = tables
        .iter()
        .filter_map(|(name, table)| Some((name, table.downcast_ref::<ReservedMemTable>()?)))
        .flat_map(|(name, table)| table.indexes().all().into_iter().map(move |index| (name, index)))
        .collect();
    let states: Vec<_> = indexes.iter().map(|(_, index)| index.rows()).collect();
    let text = |value: &dyn Fn(usize) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((0..indexes.len()).map(value)))
    };
    let number = |value: fn(&IndexedRows) -> usize| -> ArrayRef {
        Arc::new(states.iter().map(|rows| rows.as_ref().ok().map(|rows| value(rows) as u64)).collect::<UInt64Array>())
    };
    let columns: [(&str, ArrayRef); 7] = [
        ("name", text(&|at| indexes[at].1.name.clone())),
        ("table", text(&|at| indexes[at].0.table().to_owned())),
        ("column", text(&|at| indexes[at].1.column.clone())),
        ("kind", text(&|at| indexes[at].1.kind.to_string())),
        ("rows", number(IndexedRows::rows)),
        ("bytes", number(IndexedRows::bytes)),
        ("state", text(&|at| states[at].as_ref().map_or_else(|why| format!("stale: {why}"), |_| "fresh".to_owned()))),
    ];
    let fields = columns
        .iter()
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), *column.data_type() == DataType::UInt64));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    Ok(RecordBatch::try_new(schema, columns.into_iter().map(|(_, column)| column).collect())?)
}
