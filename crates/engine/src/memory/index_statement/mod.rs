//! Runs `CREATE INDEX`, `DROP INDEX`, `REINDEX` and `SHOW INDEXES`.

mod create;
mod list;
mod rebuild;
mod tables;

use std::fs;

use arrow::array::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;

use super::ReservedMemTable;
use crate::indexes::{DropIndex, IndexAction, IndexStatement};
use tables::{Indexed, Tables};

/// The statement about indexes that a plan is.
pub(super) fn index_statement(plan: &LogicalPlan) -> Option<&IndexStatement> {
    let LogicalPlan::Extension(extension) = plan else { return None };
    extension.node.as_any().downcast_ref()
}

/// Whether a plan creates or drops indexes, and returns no rows.
pub fn changes_indexes(plan: &LogicalPlan) -> bool {
    index_statement(plan).is_some_and(|statement| !matches!(statement.action, IndexAction::Show(_)))
}

/// Runs a statement. Returns its rows, if it has any.
pub(super) async fn run(ctx: &SessionContext, statement: IndexStatement) -> Result<Option<RecordBatch>> {
    match statement.action {
        IndexAction::Create(create) => create::create_index(ctx, create).await?,
        IndexAction::Drop(drop) => drop_indexes(ctx, &drop).await?,
        IndexAction::Rebuild(name) => rebuild::rebuild(ctx, &name).await?,
        IndexAction::Show(None) => return list::listed(&Tables::all(ctx).await?).map(Some),
        IndexAction::Show(Some(table)) => return list::listed(&Tables::one(ctx, table).await?).map(Some),
    }
    Ok(None)
}

async fn drop_indexes(ctx: &SessionContext, drop: &DropIndex) -> Result<()> {
    let tables = match &drop.table {
        Some(table) => Tables::one(ctx, table.clone()).await?,
        None => Tables::all(ctx).await?,
    };
    let mut found = Vec::new();
    for name in &drop.names {
        match &tables.named(name)?[..] {
            [] if drop.if_exists => {}
            [] => return exec_err!("Index '{name}' does not exist. SHOW INDEXES lists those that do"),
            [index] => found.push(index.clone()),
            [_, ..] => {
                return exec_err!("There are several indexes '{name}': say which with DROP INDEX {name} ON its table");
            }
        }
    }
    for index in found {
        match index {
            Indexed::Memory(table, name) => {
                if let Some(table) = table.downcast_ref::<ReservedMemTable>() {
                    table.indexes().remove(&name);
                }
            }
            Indexed::File(path) => fs::remove_file(&path)
                .map_err(|error| exec_datafusion_err!("{} cannot be removed: {error}", path.display()))?,
        }
    }
    Ok(())
}
