//! Runs `REINDEX`.

use std::sync::Arc;

use datafusion::common::{Result, TableReference, exec_datafusion_err, exec_err};
use datafusion::prelude::SessionContext;
use overspill_index::StoredDescription;

use super::ReservedMemTable;
use super::create::{in_files, rows_in_memory};
use super::tables::{Indexed, Tables};
use crate::indexes::TableIndex;
use crate::indexes::files::{BuiltIndex, FileIndex};

/// Makes the index of this name anew, or all indexes of the table of this name.
pub(super) async fn rebuild(ctx: &SessionContext, name: &TableReference) -> Result<()> {
    let tables = Tables::all(ctx).await?;
    let found = match name {
        TableReference::Bare { table } => tables.named(table)?,
        _ => vec![],
    };
    match &found[..] {
        [index] => rebuild_one(ctx, &tables, index).await,
        [_, ..] => exec_err!("There are several indexes '{name}': name the table in place of the index"),
        [] => {
            let Ok(tables) = Tables::one(ctx, name.clone()).await else {
                return exec_err!("There is neither an index nor a table '{name}' that has indexes");
            };
            for index in tables.indexes()? {
                rebuild_one(ctx, &tables, &index).await?;
            }
            Ok(())
        }
    }
}

async fn rebuild_one(ctx: &SessionContext, tables: &Tables, index: &Indexed) -> Result<()> {
    match index {
        Indexed::Memory(provider, name) => {
            let Some(table) = provider.downcast_ref::<ReservedMemTable>() else { return Ok(()) };
            let Some(index) = table.indexes().all().into_iter().find(|index| index.name == *name) else {
                return Ok(());
            };
            let reference = tables.memory.iter().find(|(_, table)| Arc::ptr_eq(table, provider));
            let reference = reference.map_or_else(|| TableReference::bare("table"), |(reference, _)| reference.clone());
            let TableIndex { column, kind, .. } = index.as_ref();
            rows_in_memory(ctx, provider, &reference, name, column, *kind, |built| {
                table.indexes().replace(TableIndex::new(name.clone(), column.clone(), *kind, built));
                Ok(())
            })
            .await
        }
        Indexed::File(path) => {
            let unusable = |why: String| exec_datafusion_err!("{why}. Drop the index, and create it again");
            let index = FileIndex::open(path.clone()).map_err(unusable)?;
            let Some(table) = tables.table_of(&index) else {
                return exec_err!("The table of {} is not known: name it in place of the index", path.display());
            };
            let StoredDescription { name, column, kind, included, .. } = index.description.clone();
            let included = included.into_iter().map(|column| column.name).collect();
            let built = BuiltIndex { name, column, included, kind, path: path.clone(), replaces: true };
            in_files(ctx, &table.provider, &table.name, &built).await
        }
    }
}
