//! Runs statements that use memory which DataFusion would not count.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::{Result, SchemaError, exec_err, not_impl_err, schema_err};
use datafusion::datasource::MemTable;
use datafusion::logical_expr::{CreateMemoryTable, DdlStatement, LogicalPlan, LogicalPlanBuilder, Statement};
use datafusion::physical_plan::execute_stream_partitioned;
use datafusion::prelude::{DataFrame, SessionContext};

use super::index_statement::{self, index_statement};
use super::{HeadroomPool, ReservedMemTable};
use crate::running_plan::RunningPlan;
use crate::size::setting_in_bytes;

/// Does what [`SessionContext::execute_logical_plan`] does, with every table in memory counted against the memory
/// limit of the session.
///
/// `CREATE TABLE`, with `AS` or without, makes a [`ReservedMemTable`], which enforces `PRIMARY KEY` and `UNIQUE`; `OR
/// REPLACE` keeps the old table until the new one is complete. `CREATE EXTERNAL TABLE` refuses such constraints. In a session
/// with a [`HeadroomPool`], `SET datafusion.runtime.memory_limit` changes the limit of that pool; DataFusion would replace
/// the pool. `SET datafusion.runtime.max_temp_directory_size` keeps the session's temporary directory, which DataFusion would
/// forget. Settings that are sizes take units, as in `'8GiB'`. Everything else is DataFusion's.
///
/// # Errors
/// Returns the errors of DataFusion, and [`ResourcesExhausted`](datafusion::error::DataFusionError::ResourcesExhausted) when
/// a table outgrows the memory limit.
pub async fn execute_logical_plan(ctx: &SessionContext, plan: LogicalPlan) -> Result<DataFrame> {
    if let Some(statement) = index_statement(&plan) {
        return match index_statement::run(ctx, statement.clone()).await? {
            Some(rows) => ctx.read_batch(rows),
            None => nothing(ctx),
        };
    }
    match plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(table)) => create_memory_table(ctx, table).await,
        LogicalPlan::Ddl(DdlStatement::CreateIndex(_)) => not_impl_err!(
            "CREATE INDEX is planned by overspill::sql::sql: DataFusion's plan of it lacks clauses, and does nothing"
        ),
        LogicalPlan::Ddl(DdlStatement::CreateExternalTable(table)) if table.constraints.iter().len() > 0 => {
            not_impl_err!(
                "A PRIMARY KEY or UNIQUE constraint of external table '{}' is not supported: nothing enforces it in files, \
                 and queries would rely on it. Leave it out",
                table.name
            )
        }
        LogicalPlan::Statement(Statement::SetVariable(mut set)) => {
            set.value = setting_in_bytes(&set.variable, &set.value)?.into_owned();
            if set_limit(ctx, &set.variable, &set.value)? {
                return nothing(ctx);
            }
            ctx.execute_logical_plan(LogicalPlan::Statement(Statement::SetVariable(set))).await
        }
        plan => ctx.execute_logical_plan(plan).await,
    }
}

/// A result without columns and rows.
fn nothing(ctx: &SessionContext) -> Result<DataFrame> {
    Ok(DataFrame::new(ctx.state(), LogicalPlanBuilder::empty(false).build()?))
}

/// Changes a limit in place. Returns false if DataFusion should do it.
fn set_limit(ctx: &SessionContext, variable: &str, value: &str) -> Result<bool> {
    let runtime = ctx.runtime_env();
    match variable.to_ascii_lowercase().as_str() {
        name @ "datafusion.runtime.memory_limit" => {
            let Some(pool) = runtime.memory_pool.downcast_ref::<HeadroomPool>() else { return Ok(false) };
            pool.set_limit(SessionContext::parse_capacity_limit(name, value)?);
        }
        name @ "datafusion.runtime.max_temp_directory_size" => {
            let limit = SessionContext::parse_capacity_limit(name, value)?;
            runtime.disk_manager.set_max_temp_directory_size(limit as u64)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

async fn create_memory_table(ctx: &SessionContext, table: CreateMemoryTable) -> Result<DataFrame> {
    let CreateMemoryTable { name, input, if_not_exists, or_replace, constraints, column_defaults, temporary } = table;
    if temporary {
        return not_impl_err!("Temporary tables are not supported");
    }
    let exists = ctx.table_exist(name.clone())?;
    match (exists, if_not_exists, or_replace) {
        (true, true, true) => return exec_err!("'IF NOT EXISTS' cannot coexist with 'OR REPLACE'"),
        (true, true, false) => return nothing(ctx),
        (true, false, false) => return exec_err!("Table '{name}' already exists"),
        (true, false, true) | (false, _, _) => {}
    }
    let input = ctx.state().optimize(&input)?;
    let mut names = HashSet::new();
    if let Some(field) = input.schema().fields().iter().find(|field| !names.insert(field.name().as_str())) {
        return schema_err!(SchemaError::DuplicateUnqualifiedField { name: field.name().clone() });
    }
    // The name is checked before the rows are computed.
    ctx.state().schema_for_ref(name.clone())?;

    let schema = Arc::clone(input.schema().inner());
    // Planned without another analysis: it would treat the optimizer's expressions as the text of the query.
    let state = ctx.state();
    let plan = state.query_planner().create_physical_plan(&input, &state).await?;
    let _shown = RunningPlan::show(ctx, &plan);
    let rows = execute_stream_partitioned(plan, ctx.task_ctx())?;
    let pool = Arc::clone(&ctx.runtime_env().memory_pool);
    let declare = |table: MemTable| {
        table.with_constraints(constraints).with_column_defaults(column_defaults.into_iter().collect())
    };
    let table = ReservedMemTable::try_new(&name.to_string(), schema, rows, &pool, declare).await?;
    if exists {
        ctx.deregister_table(name.clone())?;
    }
    ctx.register_table(name, Arc::new(table))?;
    nothing(ctx)
}

#[cfg(test)]
mod tests;
