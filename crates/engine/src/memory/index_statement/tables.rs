//! The tables that have indexes.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference, plan_err};
use datafusion::datasource::TableType;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;

use super::ReservedMemTable;
use crate::config::OverspillConfig;
use crate::indexes::files::{FileIndex, FileScan, folders_of, indexes_in, path_in};

/// Tables with their indexes.
pub(super) struct Tables {
    pub memory: Vec<(TableReference, Arc<dyn TableProvider>)>,
    pub files: Vec<TableOfFiles>,
    /// The folders of indexes of files.
    folders: BTreeSet<PathBuf>,
    /// Whether indexes of no table in `files` count as well.
    of_others: bool,
}

/// A table of files.
pub(super) struct TableOfFiles {
    pub name: TableReference,
    pub provider: Arc<dyn TableProvider>,
    pub files: Vec<PathBuf>,
}

/// An index that there is.
#[derive(Debug, Clone)]
pub(super) enum Indexed {
    /// Of a table in memory, by its name.
    Memory(Arc<dyn TableProvider>, String),
    /// In a file.
    File(PathBuf),
}

/// An index of files, as the statements see it.
pub(super) struct ListedIndex<'a> {
    /// The table, if it is known.
    pub table: Option<&'a TableOfFiles>,
    pub path: PathBuf,
    pub index: Result<FileIndex, String>,
}

/// The setting `overspill.index_dir`.
pub(super) fn index_dir(ctx: &SessionContext) -> String {
    let state = ctx.state();
    let overspill = state.config_options().extensions.get::<OverspillConfig>();
    overspill.map(|overspill| overspill.index_dir.clone()).unwrap_or_default()
}

/// The scan of some columns of a table of files, or of all; `None` if the table is of no files that can have indexes.
pub(super) async fn scan_of(
    ctx: &SessionContext,
    table: &Arc<dyn TableProvider>,
    columns: Option<&Vec<usize>>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if table.table_type() != TableType::Base || table.get_logical_plan().is_some() {
        return Ok(None);
    }
    let plan = table.scan(&ctx.state(), columns, &[], None).await?;
    let is_of_files = plan.downcast_ref::<DataSourceExec>().and_then(FileScan::of).is_some();
    Ok(is_of_files.then_some(plan))
}

impl Tables {
    /// All tables of the session, and the indexes in the folder for all.
    pub async fn all(ctx: &SessionContext) -> Result<Self> {
        let mut tables = Self::none(ctx, true);
        for catalog_name in ctx.catalog_names() {
            let Some(catalog) = ctx.catalog(&catalog_name) else { continue };
            for schema_name in catalog.schema_names().into_iter().filter(|name| name != "information_schema") {
                let Some(schema) = catalog.schema(&schema_name) else { continue };
                for name in schema.table_names() {
                    let Some(table) = schema.table(&name).await? else { continue };
                    let reference = TableReference::full(catalog_name.as_str(), schema_name.as_str(), name);
                    // A table whose files cannot be read, as they were removed, has no indexes.
                    _ = tables.add(ctx, reference, table).await;
                }
            }
        }
        Ok(tables)
    }

    /// One table.
    pub async fn one(ctx: &SessionContext, reference: TableReference) -> Result<Self> {
        let mut tables = Self::none(ctx, false);
        let table = ctx.table_provider(reference.clone()).await?;
        if !tables.add(ctx, reference.clone(), table).await? {
            return plan_err!("'{reference}' has no indexes: only tables in memory and files of Parquet and Arrow do");
        }
        Ok(tables)
    }

    fn none(ctx: &SessionContext, of_others: bool) -> Self {
        let folders = folders_of(std::iter::empty(), &index_dir(ctx)).into_iter().collect();
        Self { memory: vec![], files: vec![], folders, of_others }
    }

    /// Adds a table, if it is one that can have indexes.
    async fn add(&mut self, ctx: &SessionContext, name: TableReference, table: Arc<dyn TableProvider>) -> Result<bool> {
        if table.downcast_ref::<ReservedMemTable>().is_some() {
            self.memory.push((name, table));
            return Ok(true);
        }
        let Some(plan) = scan_of(ctx, &table, None).await? else { return Ok(false) };
        let Some(scan) = plan.downcast_ref::<DataSourceExec>().and_then(FileScan::of) else { return Ok(false) };
        let files = scan.files();
        self.folders.extend(folders_of(files.iter().map(PathBuf::as_path), ""));
        self.files.push(TableOfFiles { name, provider: table, files });
        Ok(true)
    }

    /// The indexes of files, with the table of each.
    pub fn file_indexes(&self) -> Result<Vec<ListedIndex<'_>>> {
        let mut all = Vec::new();
        for folder in &self.folders {
            for (path, index) in indexes_in(folder)? {
                let table = index.as_ref().ok().and_then(|index| self.table_of(index));
                if table.is_some() || self.of_others || index.is_err() {
                    all.push(ListedIndex { table, path, index });
                }
            }
        }
        Ok(all)
    }

    /// The table whose files an index has: of several the one with the most of them.
    pub fn table_of(&self, index: &FileIndex) -> Option<&TableOfFiles> {
        let has = |table: &TableOfFiles| table.files.iter().filter(|path| index.file(path).is_some()).count();
        let tables = self.files.iter().filter(|table| has(table) > 0);
        tables.max_by_key(|table| (has(table), Reverse(table.files.len()), Reverse(table.name.to_string())))
    }

    /// All indexes.
    pub fn indexes(&self) -> Result<Vec<Indexed>> {
        let mut all = Vec::new();
        for (_, provider) in &self.memory {
            let table = provider.downcast_ref::<ReservedMemTable>();
            let indexes = table.into_iter().flat_map(|table| table.indexes().all());
            all.extend(indexes.map(|index| Indexed::Memory(Arc::clone(provider), index.name.clone())));
        }
        all.extend(self.file_indexes()?.into_iter().map(|listed| Indexed::File(listed.path)));
        Ok(all)
    }

    /// The indexes of this name.
    pub fn named(&self, name: &str) -> Result<Vec<Indexed>> {
        let is_named = |index: &Indexed| match index {
            Indexed::Memory(_, own) => own == name,
            Indexed::File(path) => *path == path_in(folder(path), name),
        };
        Ok(self.indexes()?.into_iter().filter(is_named).collect())
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}
